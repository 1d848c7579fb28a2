"""What an image is made of: one piece of work a blob. Nothing is read before a blob is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torchproof.assemble.base_image import BaseImage
from torchproof.assemble.layer.base_layers import (
    BaseFiles,
    config_layer,
    python_layer,
    read_base_files,
)
from torchproof.assemble.layer.installation import Installation, Installed, install
from torchproof.assemble.layer.prune import Pruner
from torchproof.assemble.layer.stream import LayerStream, Transform
from torchproof.assemble.layer.wheel_file import open_wheel
from torchproof.assemble.layer_facts import recipe_key
from torchproof.assemble.recipes import MOST_LAYERS, Recipe, recipes
from torchproof.image.config import image_config
from torchproof.image.layers import PREFIX, Plan
from torchproof.index.verified_files import State, is_marked, state_of
from torchproof.index.wheel_store import WheelStore
from torchproof.model.lock import WHEELHOUSE, LayerName, Lock, LockedWheel, canonical_json

SEEDS = frozenset({"pip", "setuptools"})
"""What `venv` installs besides the environment itself."""
_LARGE_ENOUGH = 4096
"""Bytes of the smallest file that can hold device code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One blob to be made: what is known of it, and how to make it."""

    name: LayerName
    title: str
    key: str
    size: int
    """Bytes to expect, for scheduling."""
    make: Callable[[bool], LayerStream]
    """Takes whether the tar is to be hashed (its facts are not known)."""
    wheels: tuple[LockedWheel, ...] = ()
    pruners: list[Pruner] = field(default_factory=list)
    """Filled while the blob is made."""
    unchecked: dict[Path, State] = field(default_factory=dict)
    """Cached wheels that are hashed while the blob is made, and what they were before."""
    kept: bool = False
    """Whether the blob is small and dear to make: it is kept in the cache."""


def all_work(
    plan: Plan, lock: Lock, base: BaseImage, *, store: WheelStore, cache: Path
) -> list[Work]:
    """Cut an image above its base into blobs, bottom first."""
    found: list[BaseFiles] = []
    reading = threading.Lock()

    def files() -> BaseFiles:
        with reading:
            if not found:
                found.append(read_base_files(base, lock.python))
        return found[0]

    config = image_config(lock)
    replaced = sorted({wheel.name for wheel in lock.wheels} & SEEDS)
    python_key = recipe_key(
        {"base": base.id, "python": lock.python, "prefix": PREFIX, "replaced": replaced}
    )
    user = {"passwd": config.passwd, "directories": canonical_json(list(config.directories))}
    scratch = cache / "bases" / "wheels"
    python = Work(
        name=LayerName.PYTHON,
        title=f"python: virtual environment of Python {lock.python}",
        key=python_key,
        size=3_000_000,
        make=lambda _: python_layer(
            files(),
            lock.python,
            scratch / base.id.removeprefix("sha256:"),
            replaced=replaced,
        ),
        kept=True,
    )
    last = Work(
        name=LayerName.CONFIG,
        title="config: the user and its folders",
        key=recipe_key({"base": base.id, "user": user}),
        size=4096,
        make=lambda _: config_layer(files(), config),
        kept=True,
    )
    room = MOST_LAYERS - len(base.layers) - 2
    wheels = [_of_wheels(one, lock, store) for one in recipes(plan, lock, room=room)]
    return [python, *wheels, last]


def _of_wheels(recipe: Recipe, lock: Lock, store: WheelStore) -> Work:
    pruners: list[Pruner] = []
    unchecked: dict[Path, State] = {}

    def choose(file: Installed) -> Transform | None:
        if file.member is None or file.member.size < _LARGE_ENOUGH or not _library(file.path):
            return None
        pruner = Pruner(recipe.gpus, size=file.member.size)
        pruners.append(pruner)
        return pruner

    def make(hashing: bool) -> LayerStream:
        wheels: list[tuple[Installation, str | None]] = []
        unchecked.clear()
        for wheel in recipe.wheels:
            path = store.path(wheel) or store.fetch(wheel, cell=lock.cell)
            ours = wheel.index != WHEELHOUSE
            checked = ours and is_marked(path)
            if ours and not checked:
                unchecked[path] = state_of(path)
            installation = install(open_wheel(path), lock.python)
            wheels.append((installation, None if checked else wheel.sha256))
        return LayerStream(wheels=wheels, choose=choose if recipe.gpus else None, hashing=hashing)

    return Work(
        name=recipe.layer,
        title=recipe.title,
        key=recipe.key,
        size=recipe.size,
        make=make,
        wheels=recipe.wheels,
        pruners=pruners,
        unchecked=unchecked,
    )


def _library(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith((".so", ".cubin", ".fatbin")) or ".so." in name
