"""A base and a lock of a few kilobytes, whole enough to make an image of."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.wheels import make_wheel, sha256
from torchproof.assemble import build_image
from torchproof.assemble.base_image import from_tar
from torchproof.assemble.destination import Destination
from torchproof.assemble.layer_facts import FactsStore
from torchproof.assemble.make_layers import BuildResources
from torchproof.index.indexes import Indexes
from torchproof.index.wheel_store import WheelStore
from torchproof.model.lock import LayerName, Lock, LockedBase, LockedWheel
from torchproof.model.results import Built

ACTIVATE = (
    b'VIRTUAL_ENV=__VENV_DIR__\nPATH="$VIRTUAL_ENV/"__VENV_BIN_NAME__":$PATH"\n'
    b'PS1=__VENV_PROMPT__"$PS1"\n'
)


def tiny_base(folder: Path) -> Path:
    """Write base.tar: an interpreter, the wheel of pip, a user list."""
    seeds = folder / "seeds"
    seeds.mkdir(parents=True, exist_ok=True)
    pip = make_wheel(
        seeds,
        {"pip/__init__.py": b""},
        name="pip",
        entry_points="[console_scripts]\npip = pip:main\npip3 = pip:main\npip3.9 = pip:main\n",
    )
    files = {
        "./usr/bin/python3.11": b"\x7fELF",
        "./etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n",
        "./var/lib/dpkg/status": b"Package: python3.11-minimal\nVersion: 3.11.2-6\n\n",
        "./usr/lib/python3.11/venv/scripts/common/activate": ACTIVATE,
        f"./usr/share/python-wheels/{pip.name}": pip.read_bytes(),
    }
    path = folder / "base.tar"
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755 if "/bin/" in name else 0o644
            archive.addfile(info, io.BytesIO(data))
    return path


def tiny_lock(folder: Path, cache: Path, *, nccl: bytes = b"1") -> Lock:
    """Lock four small wheels, which lie in the cache already."""
    contents = {
        ("nvidia-cublas-cu12", LayerName.CUDA): {"nvidia/cublas/lib/libcublas.so.12": b"c" * 9000},
        ("torch", LayerName.TORCH): {
            "torch/__init__.py": b"__version__ = '2.9.1'\n",
            "torch/lib/libtorch_cuda.so": bytes(range(256)) * 400,
        },
        ("sympy", LayerName.TORCH): {"sympy/__init__.py": b""},
        ("nvidia-nccl-cu12", LayerName.NCCL): {"nvidia/nccl/lib/libnccl.so.2": nccl * 5000},
    }
    wheels = []
    for (name, layer), files in contents.items():
        path = make_wheel(folder, files, name=name.replace("-", "_"))
        digest = sha256(path)
        place = cache / "wheels" / digest / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        path.replace(place)
        wheels.append(
            LockedWheel(
                name=name,
                version="1.0",
                filename=path.name,
                sha256=digest,
                size=place.stat().st_size,
                index="pypi",
                layer=layer,
            )
        )
    return Lock(
        cell="2.9.1-cu128-py311",
        torch="2.9.1",
        cuda="cu128",
        cudnn="9.10.2.21",
        nccl="2.27.5",
        triton=None,
        python="3.11",
        platform="linux/amd64",
        base=LockedBase(bootstrap="debian/bookworm"),
        wheels=tuple(wheels),
        archs=("sm_80", "sm_90"),
    )


def slim(lock: Lock, *gpus: str) -> Lock:
    """Return the lock of the slim image."""
    return replace(lock, gpus=gpus)


def assemble(
    lock: Lock,
    base: Path,
    cache: Path,
    destination: Destination,
    folder: Path | None = None,
    **options: Any,
) -> Built:
    """Build into a destination."""
    store = WheelStore(cache, Indexes(pytorch="http://127.0.0.1:9"))
    resources = BuildResources(store=store, cache=cache, **options)
    facts = FactsStore(cache / "layers")
    image = from_tar(base, facts)
    return build_image.assemble(lock, image, destination, resources, facts=facts, folder=folder)
