"""A lock: one cell, exact. Read from and written to `images/<cell>/lock.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from torchproof.model.digests import digest_of

PYPI: Final = "pypi"
"""The index alias of whatever index pip and uv are configured with."""
WHEELHOUSE: Final = "wheelhouse"
"""The index alias of the user's own wheels."""


class LayerName(StrEnum):
    """Steps of an image from bottom to top, those that change least first."""

    BASE = "base"
    PYTHON = "python"
    CUDA = "cuda"
    CUDNN = "cudnn"
    TORCH = "torch"
    NCCL = "nccl"
    EXTRAS = "extras"
    CONFIG = "config"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedWheel:
    """One wheel, exact. `index` is an alias (`pypi`, `pytorch/cu118`, `wheelhouse`), not a URL."""

    name: str
    """Normalised distribution name (PEP 503)."""
    version: str
    filename: str
    sha256: str
    """Hexadecimal."""
    size: int
    """Bytes of the wheel file."""
    index: str
    layer: LayerName


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A wheel that replaces the one torch pins."""

    name: str
    pinned: str
    chosen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedBase:
    """The base, exact. `image` is `name@sha256:…`; `bootstrap` names the suite."""

    image: str | None = None
    bootstrap: str | None = None
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """One cell, exact. Equal locks give equal layers."""

    cell: str
    torch: str
    cuda: str
    cudnn: str
    nccl: str
    """Version of the NCCL wheel in the image (after overrides)."""
    triton: str | None
    python: str
    platform: str
    base: LockedBase
    wheels: tuple[LockedWheel, ...]
    """Sorted by (layer order, name)."""
    overrides: tuple[Override, ...] = ()
    gpus: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    """Device code in torch's libraries, as published ("sm_90", "compute_120")."""
    driver_floor: str = ""
    """Oldest Linux driver that runs this CUDA under minor-version compatibility."""
    compile: bool = True
    rdma: bool = False

    def layer(self, name: LayerName) -> tuple[LockedWheel, ...]:
        """Return the wheels of one layer, sorted by name."""
        return tuple(wheel for wheel in self.wheels if wheel.layer == name)

    @property
    def download_bytes(self) -> int:
        """Bytes of all wheel files."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def digest(self) -> str:
        """`sha256:…` of the lock's content, independent of how the file is formatted."""
        return digest_of(self)
