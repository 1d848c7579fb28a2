"""A cell: one combination of the matrix. Pure values; everything else is made from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from torchproof.model.platforms import AMD64
from torchproof.model.versions import cuda_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The OS layer of an image.

    Exactly one of `image` (a reference pinned by digest) and `bootstrap` ("debian/bookworm", made
    from the distribution's archive) is set. `packages` are distribution packages beyond the
    minimum, sorted: the interpreter, and what the options `compile` and `rdma` need.
    """

    image: str | None = None
    bootstrap: str | None = None
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination. Versions are exact ("2.9.1"), CUDA is the wheel's name ("cu128")."""

    torch: str
    cuda: str
    python: str = "3.11"
    platform: str = AMD64
    cudnn: str | None = None
    """Override of the cuDNN wheel that torch pins."""
    nccl: str | None = None
    """Override of the NCCL wheel that torch pins."""
    gpus: tuple[str, ...] = ()
    """Slim image: keep device code for these architectures only ("sm_90"). Empty: keep all."""
    extras: tuple[str, ...] = ()
    """Further requirements, installed above NCCL ("numpy", "deepspeed==0.18.2")."""
    compile: bool = True
    rdma: bool = False
    wheelhouse: Path | None = None
    base: Base = field(default_factory=lambda: Base(bootstrap="debian/bookworm"))

    @property
    def id(self) -> str:
        """The cell's name: `2.9.1-cu128-py311`, then what differs from the default."""
        parts = [self.torch, self.cuda, "py" + self.python.replace(".", "")]
        if self.platform != AMD64:
            parts.append(self.platform.removeprefix("linux/"))
        if self.cudnn:
            parts.append(f"cudnn{self.cudnn}")
        if self.nccl:
            parts.append(f"nccl{self.nccl}")
        parts += [gpu.replace("_", "") for gpu in self.gpus]
        return "-".join(parts)

    @property
    def cuda_version(self) -> str:
        """`cu128` → `12.8`."""
        return cuda_version(self.cuda)
