"""recipe → the stream of a layer's bytes. Nothing is read before a layer is opened."""

from __future__ import annotations

import threading
from collections.abc import Mapping
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
from torchproof.assemble.layer.slim import Pruner
from torchproof.assemble.layer.stream import LayerStream, Transform
from torchproof.assemble.layer.wheel_file import open_wheel
from torchproof.assemble.recipes import (
    ImageRecipe,
    LayerRecipe,
    UserRecipe,
    VenvRecipe,
    WheelsRecipe,
)
from torchproof.index.verified_files import State, is_marked, state_of
from torchproof.index.wheel_store import WheelStore
from torchproof.model.lock import WHEELHOUSE

_LARGE_ENOUGH = 4096
"""Bytes of the smallest file that can hold device code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLayer:
    """A layer about to be made, and what is learnt while its stream runs.

    `pruners` count what they zeroed, one for each library of a slim layer. `unchecked` are cached
    wheels that are hashed on the way, with what the file system said of them before.
    """

    stream: LayerStream
    pruners: list[Pruner] = field(default_factory=list)
    unchecked: Mapping[Path, State] = field(default_factory=dict)


class LayerOpener:
    """Opens the layers of one image. `scratch` takes the wheels that the base carries for `venv`.

    Safe for several threads.
    """

    def __init__(
        self, image: ImageRecipe, base: BaseImage, *, store: WheelStore, scratch: Path
    ) -> None:
        self._image = image
        self._base = base
        self._store = store
        self._scratch = scratch / base.id.removeprefix("sha256:")
        self._files: BaseFiles | None = None
        self._reading = threading.Lock()

    def open(self, recipe: LayerRecipe, *, hashing: bool) -> OpenLayer:
        """Start a layer from its beginning; `hashing` if its facts are not known.

        Raises CellError for a base that lacks what `venv` needs, and like `WheelStore.fetch`.
        """
        match recipe:
            case VenvRecipe():
                stream = python_layer(
                    self._base_files(), recipe.python, self._scratch, replaced=recipe.replaced
                )
                return OpenLayer(stream=stream)
            case UserRecipe():
                return OpenLayer(stream=config_layer(self._base_files(), recipe.config))
            case WheelsRecipe():
                return self._open_wheels(recipe, hashing=hashing)

    def _base_files(self) -> BaseFiles:
        """Read the base for the two layers that need its files; once for both."""
        with self._reading:
            if self._files is None:
                self._files = read_base_files(self._base, self._image.python)
            return self._files

    def _open_wheels(self, recipe: WheelsRecipe, *, hashing: bool) -> OpenLayer:
        pruners: list[Pruner] = []

        def choose(file: Installed) -> Transform | None:
            if file.member is None or file.member.size < _LARGE_ENOUGH or not _library(file.path):
                return None
            pruner = Pruner(recipe.gpus, size=file.member.size)
            pruners.append(pruner)
            return pruner

        wheels: list[tuple[Installation, str | None]] = []
        unchecked: dict[Path, State] = {}
        for wheel in recipe.wheels:
            path = self._store.path(wheel) or self._store.fetch(wheel, cell=self._image.cell)
            ours = wheel.index != WHEELHOUSE
            checked = ours and is_marked(path)
            if ours and not checked:
                unchecked[path] = state_of(path)
            installation = install(open_wheel(path), recipe.python)
            wheels.append((installation, None if checked else wheel.sha256))
        stream = LayerStream(wheels=wheels, choose=choose if recipe.gpus else None, hashing=hashing)
        return OpenLayer(stream=stream, pruners=pruners, unchecked=unchecked)


def _library(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith((".so", ".cubin", ".fatbin")) or ".so." in name
