"""lock → what an image consists of above its base: one recipe a layer, each with its key. Pure.

A lock goes no further than this: whoever makes layers, or writes the image's documents, gets
recipes. A large wheel is a layer of its own, so that it is the same blob in every image that has
it; small ones share a blob for each layer of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from torchproof.assemble.layer.slim import COMPRESSION, require_served
from torchproof.assemble.layer_facts import recipe_key
from torchproof.errors import CellError
from torchproof.image.config import ImageConfig, image_config
from torchproof.image.layers import PREFIX, Plan, make_plan
from torchproof.model.digests import canonical_json
from torchproof.model.lock import LayerName, Lock, LockedWheel

LARGE: Final = 4_000_000
"""Bytes from which a wheel is a layer of its own."""
MOST_LAYERS: Final = 127
"""How many layers Docker's overlay storage can stack."""
_SEEDS: Final = frozenset({"pip", "setuptools"})
"""What `venv` installs besides the environment itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VenvRecipe:
    """The layer of the virtual environment, made of the base's own files.

    `replaced` are distributions of `venv` that a later layer brings.
    """

    key: str
    python: str
    replaced: tuple[str, ...]
    layer: ClassVar = LayerName.PYTHON
    size: ClassVar = 3_000_000
    """Bytes to expect, for scheduling."""

    @property
    def title(self) -> str:
        """What people read."""
        return f"python: virtual environment of Python {self.python}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelsRecipe:
    """A layer of wheels. With `gpus`, code for other GPUs is zeroed."""

    layer: LayerName
    key: str
    wheels: tuple[LockedWheel, ...]
    python: str
    gpus: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What people read: `torch: torch 2.9.1`, `torch: 7 small wheels`."""
        if len(self.wheels) == 1:
            return f"{self.layer}: {self.wheels[0].name} {self.wheels[0].version}"
        return f"{self.layer}: {len(self.wheels)} small wheels"

    @property
    def size(self) -> int:
        """Bytes of the wheels."""
        return sum(wheel.size for wheel in self.wheels)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRecipe:
    """The layer that adds the image's user and the folders that it may write to."""

    key: str
    config: ImageConfig
    layer: ClassVar = LayerName.CONFIG
    size: ClassVar = 4096
    title: ClassVar = "config: the user and its folders"


LayerRecipe = VenvRecipe | WheelsRecipe | UserRecipe
"""One layer to make. `key` names everything that its bytes depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecipe:
    """An image above its base: layers bottom first, and what the image says of itself."""

    cell: str
    platform: str
    python: str
    plan_hash: str
    config: ImageConfig
    layers: tuple[LayerRecipe, ...]


def image_recipe(lock: Lock, *, base_id: str, base_layers: int) -> ImageRecipe:
    """Cut the image of a lock into layers. `base_id` names the content of its base.

    Raises CellError if the base has so many layers that the image's do not fit above it, or if
    torch has no device code for a GPU that a slim image is for.
    """
    require_served(lock.archs, lock.gpus)
    plan = make_plan(lock)
    config = image_config(lock, plan)
    return ImageRecipe(
        cell=lock.cell,
        platform=lock.platform,
        python=lock.python,
        plan_hash=plan.hash,
        config=config,
        layers=(
            _venv(lock, base_id),
            *wheel_recipes(lock, plan, room=MOST_LAYERS - base_layers - 2),
            _user(config, base_id),
        ),
    )


def _venv(lock: Lock, base_id: str) -> VenvRecipe:
    replaced = tuple(sorted({wheel.name for wheel in lock.wheels} & _SEEDS))
    key = recipe_key(
        {"base": base_id, "python": lock.python, "prefix": PREFIX, "replaced": replaced}
    )
    return VenvRecipe(key=key, python=lock.python, replaced=replaced)


def _user(config: ImageConfig, base_id: str) -> UserRecipe:
    user = {"passwd": config.passwd, "directories": canonical_json(list(config.directories))}
    return UserRecipe(key=recipe_key({"base": base_id, "user": user}), config=config)


def wheel_recipes(lock: Lock, plan: Plan, *, room: int = MOST_LAYERS) -> tuple[WheelsRecipe, ...]:
    """Cut the wheels of a plan into layers, bottom first; at most `room` of them.

    Raises CellError if even one for each layer of the plan is too many.
    """
    limits = sorted({LARGE, *(wheel.size + 1 for wheel in lock.wheels if wheel.size >= LARGE)})
    for limit in limits:
        found = tuple(
            _wheels(layer.name, group, lock)
            for layer in plan.layers
            for group in _groups(layer.wheels, limit)
        )
        if len(found) <= room:
            return found
    raise CellError(
        f"{lock.cell}: its base has too many layers; an image can have {MOST_LAYERS}",
        fix="take a base with fewer layers",
    )


def _groups(wheels: tuple[LockedWheel, ...], limit: int) -> list[tuple[LockedWheel, ...]]:
    small = tuple(wheel for wheel in wheels if wheel.size < limit)
    large = [(wheel,) for wheel in wheels if wheel.size >= limit]
    return [small, *large] if small else [*large]


def _wheels(name: LayerName, wheels: tuple[LockedWheel, ...], lock: Lock) -> WheelsRecipe:
    inputs: dict[str, object] = {
        "prefix": PREFIX,
        "python": lock.python,
        "wheels": [wheel.sha256 for wheel in wheels],
    }
    if lock.gpus:
        inputs |= {"gpus": sorted(lock.gpus), "compression": COMPRESSION}
    return WheelsRecipe(
        layer=name, key=recipe_key(inputs), wheels=wheels, python=lock.python, gpus=lock.gpus
    )
