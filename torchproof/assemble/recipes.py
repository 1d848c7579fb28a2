"""plan → the blobs of an image that come from wheels. Pure.

A large wheel is a blob of its own, so that it is the same blob in every image that has it; small
ones share a blob for each layer of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torchproof.assemble.layer.prune import COMPRESSION
from torchproof.assemble.layer_facts import recipe_key
from torchproof.errors import CellError
from torchproof.image.layers import PREFIX, Plan
from torchproof.model.lock import LayerName, Lock, LockedWheel

LARGE: Final = 4_000_000
"""Bytes from which a wheel is a blob of its own."""
MOST_LAYERS: Final = 127
"""What Docker's overlay storage can stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One blob made of wheels. `key` names all that its bytes depend on."""

    layer: LayerName
    wheels: tuple[LockedWheel, ...]
    key: str
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


def recipes(plan: Plan, lock: Lock, *, room: int = MOST_LAYERS) -> tuple[Recipe, ...]:
    """Cut a plan into blobs, bottom first; at most `room` of them.

    Raises CellError if even one blob for each layer of the plan is too many.
    """
    limits = sorted({LARGE, *(wheel.size + 1 for wheel in lock.wheels if wheel.size >= LARGE)})
    for limit in limits:
        found = tuple(
            _recipe(layer.name, group, lock)
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


def _recipe(name: LayerName, wheels: tuple[LockedWheel, ...], lock: Lock) -> Recipe:
    inputs: dict[str, object] = {
        "prefix": PREFIX,
        "python": lock.python,
        "wheels": [wheel.sha256 for wheel in wheels],
    }
    if lock.gpus:
        inputs |= {"gpus": sorted(lock.gpus), "compression": COMPRESSION}
    return Recipe(layer=name, wheels=wheels, key=recipe_key(inputs), gpus=lock.gpus)
