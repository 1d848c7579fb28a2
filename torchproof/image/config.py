"""lock → what an image says of itself: environment, user, folders, labels. The one place for it.

Both builders use it (the Dockerfile and the images assembled straight from wheels), and an image
found on a machine is only reused if its configuration is still this one. No time stamps: equal
locks give equal configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchproof.image.layers import PREFIX, Plan
from torchproof.model.lock import Lock
from torchproof.model.versions import cuda_version

UID = 1000
HOME = "/home/torch"
CACHE = f"{HOME}/.cache"
WORKDIR = "/workspace"
TITLE_LABEL = "org.opencontainers.image.title"
LAYERS_LABEL = "torchproof.layers"
PLAN_LABEL = "torchproof.plan"
CELL_LABEL = "torchproof.cell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A folder of the config layer. `mode` is the octal permission bits."""

    path: str
    mode: int
    uid: int = UID
    gid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """The configuration of an image, in the words of the OCI image specification.

    `passwd` is the line that the config layer adds to /etc/passwd. `user` is numeric, so that
    Kubernetes can see that it is not root.
    """

    env: Mapping[str, str]
    user: str
    workdir: str
    cmd: tuple[str, ...]
    entrypoint: tuple[str, ...]
    labels: Mapping[str, str]
    passwd: str
    directories: tuple[Directory, ...]


def image_config(lock: Lock, plan: Plan) -> ImageConfig:
    """Return the configuration of the image of a lock, whose layers are those of `plan`."""
    return ImageConfig(
        env=_environment(lock),
        user=f"{UID}:0",
        workdir=WORKDIR,
        cmd=("python",),
        entrypoint=(),
        labels=_labels(lock, plan),
        passwd=f"torch:x:{UID}:0:torch:{HOME}:/bin/sh",
        directories=(
            # Group 0 and the group's write bit: OpenShift runs images as a random user of group 0.
            Directory(path=HOME, mode=0o775),
            Directory(path=WORKDIR, mode=0o775),
            # Open to all, as /tmp is: `docker run --user $(id -u):$(id -g)` is in no group of ours.
            Directory(path=CACHE, mode=0o1777),
        ),
    )


def nvidia_requirement(cuda_version: str) -> str:
    """Return NVIDIA_REQUIRE_CUDA for a CUDA version (`12.6` → `cuda>=12.0`).

    The NVIDIA container runtime compares it with the CUDA version that the driver reports. By
    minor-version compatibility every driver of the same major runs the wheels; asking for the
    wheel's own minor would refuse drivers that work.
    Source: docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html.
    """
    return f"cuda>={cuda_version.split('.', maxsplit=1)[0]}.0"


def _environment(lock: Lock) -> dict[str, str]:
    return {
        "PATH": f"{PREFIX}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "VIRTUAL_ENV": PREFIX,
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "LANG": "C.UTF-8",
        "HOME": HOME,
        # A user without a line in /etc/passwd: Python's getpass (and with it Inductor) reads USER.
        "USER": "torch",
        "XDG_CACHE_HOME": CACHE,
        "TORCH_HOME": f"{CACHE}/torch",
        "TORCH_EXTENSIONS_DIR": f"{CACHE}/torch_extensions",
        "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
        "TRITON_CACHE_DIR": f"{CACHE}/triton",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_REQUIRE_CUDA": nvidia_requirement(cuda_version(lock.cuda)),
    }


def _labels(lock: Lock, plan: Plan) -> dict[str, str]:
    labels = {
        TITLE_LABEL: f"PyTorch {lock.torch}, CUDA {cuda_version(lock.cuda)}",
        "org.opencontainers.image.description": (
            f"PyTorch {lock.torch} with CUDA {cuda_version(lock.cuda)}, cuDNN {lock.cudnn}, "
            f"NCCL {lock.nccl}, Python {lock.python}"
        ),
        "org.opencontainers.image.version": lock.cell,
        CELL_LABEL: lock.cell,
        "torchproof.torch": lock.torch,
        "torchproof.cuda": cuda_version(lock.cuda),
        "torchproof.cudnn": lock.cudnn,
        "torchproof.nccl": lock.nccl,
        "torchproof.triton": lock.triton or "",
        "torchproof.python": lock.python,
        "torchproof.archs": ",".join(lock.archs),
        "torchproof.gpus": ",".join(lock.gpus),
        "torchproof.driver-floor": lock.driver_floor,
        "torchproof.lock": lock.digest,
        PLAN_LABEL: plan.hash,
        LAYERS_LABEL: ",".join(layer.name for layer in plan.layers),
    }
    return {name: value for name, value in labels.items() if value}
