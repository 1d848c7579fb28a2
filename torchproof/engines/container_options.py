"""The options of a container that depend on the engine: its log, its limits and its GPUs.

`containers` adds those that are the same on every engine.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from typing import Any

from docker.types import DeviceRequest, LogConfig, Ulimit

from torchproof.engines.engine import RunSpec


def container_options(
    spec: RunSpec, *, podman: bool, info: Callable[[], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the options that Docker or Podman needs to run a command.

    `info` returns what the engine says about itself (`docker info`); it is asked for GPUs only.
    """
    options: dict[str, Any] = {}
    if podman:
        options["ulimits"] = _own_limits()
    else:
        options["log_config"] = LogConfig(
            type="json-file", config={"max-size": "64m", "max-file": "1"}
        )
    if spec.gpus:
        options |= _podman_gpus(spec.gpus) if podman else _docker_gpus(spec.gpus, info())
    return options


def _podman_gpus(gpus: tuple[str, ...]) -> dict[str, Any]:
    return {"devices": _cdi_names(gpus)}


def _docker_gpus(gpus: tuple[str, ...], info: Mapping[str, Any]) -> dict[str, Any]:
    """Give GPUs through NVIDIA's runtime, or through CDI where the engine has only that."""
    if "nvidia" not in info.get("Runtimes", {}) and info.get("CDISpecDirs"):
        return {"device_requests": [DeviceRequest(driver="cdi", device_ids=_cdi_names(gpus))]}
    request = DeviceRequest(device_ids=list(gpus), capabilities=[["gpu"]])
    return {"device_requests": [request]}


def _cdi_names(gpus: tuple[str, ...]) -> list[str]:
    return [f"nvidia.com/gpu={gpu}" for gpu in gpus]


def _own_limits() -> list[Ulimit]:
    """Return limits that this machine allows; Podman's defaults may be higher."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = min(resource.getrlimit(resource.RLIMIT_NPROC)[0] % 2**63, 32768)
    return [
        Ulimit(name="nofile", soft=files[0], hard=files[1]),
        Ulimit(name="nproc", soft=processes, hard=processes),
    ]
