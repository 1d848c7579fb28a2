"""lock → layers. Pure: equal locks give equal plans, on any machine."""

from __future__ import annotations

from dataclasses import dataclass

from torchproof.model.digests import canonical_json, digest_of
from torchproof.model.lock import LayerName, Lock, LockedWheel

PREFIX = "/opt/venv"
"""Where the virtual environment of an image is."""
RECIPE = 1
"""How layers are made from wheels. One more whenever the steps of the Dockerfile change what they
leave behind: images and environments of the old recipe are then built again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One step of an image. `key` names its content: the inputs of this layer and of all below."""

    name: LayerName
    key: str
    wheels: tuple[LockedWheel, ...] = ()

    @property
    def download_bytes(self) -> int:
        """Bytes of the wheel files that this layer needs."""
        return sum(wheel.size for wheel in self.wheels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The layers of one cell, bottom first. `hash` changes if anything in the image would."""

    cell: str
    layers: tuple[Layer, ...]

    @property
    def hash(self) -> str:
        """`sha256:…` of the topmost layer's key."""
        return self.layers[-1].key


def make_plan(lock: Lock) -> Plan:
    """Arrange a lock into layers; a layer without wheels is left out, save base, python, config."""
    layers: list[Layer] = []
    below = ""
    for name in LayerName:
        wheels = lock.layer(name)
        if not wheels and name not in (LayerName.BASE, LayerName.PYTHON, LayerName.CONFIG):
            continue
        below = _key(below, name, lock, wheels)
        layers.append(Layer(name=name, key=below, wheels=wheels))
    return Plan(cell=lock.cell, layers=tuple(layers))


def _key(below: str, name: LayerName, lock: Lock, wheels: tuple[LockedWheel, ...]) -> str:
    inputs: dict[str, object] = {
        "below": below,
        "name": name,
        "wheels": [wheel.sha256 for wheel in wheels],
    }
    match name:
        case LayerName.BASE:
            inputs |= {
                "base": canonical_json(lock.base),
                "platform": lock.platform,
                "recipe": RECIPE,
            }
        case LayerName.PYTHON:
            inputs |= {"python": lock.python, "prefix": PREFIX}
        case LayerName.CONFIG:
            inputs |= {"lock": lock.digest}
        case _:
            inputs |= {"gpus": lock.gpus}
    return digest_of(inputs)
