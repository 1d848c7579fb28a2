"""The driver and the GPUs of this machine, as NVML reports them. No CUDA context is made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torchproof.model.results import Gpu


def read_gpus() -> tuple[str | None, tuple[Gpu, ...]]:
    """Return the driver's version (None without a driver) and its GPUs in NVML's order.

    A GPU that NVML cannot read (lost, fallen off the bus) is left out: nothing can run on it.
    """
    pynvml = _nvml()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None, ()
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        gpus: list[Gpu] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                gpus.append(_gpu(pynvml, index))
            except pynvml.NVMLError:
                continue
        return driver, tuple(gpus)
    except pynvml.NVMLError:
        return None, ()
    finally:
        pynvml.nvmlShutdown()


def visible(gpus: Sequence[Gpu], setting: str | None = None) -> tuple[Gpu, ...]:
    """Keep the GPUs that CUDA_VISIBLE_DEVICES names (a scheduler's choice); unset keeps all.

    As CUDA reads it: indexes or UUID prefixes, and the first one that names nothing ends the list.
    """
    setting = os.environ.get("CUDA_VISIBLE_DEVICES") if setting is None else setting
    if setting is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for token in (part.strip() for part in setting.split(",")):
        if token.isdigit():
            found = list(gpus[int(token) : int(token) + 1])
        else:
            found = [gpu for gpu in gpus if token and gpu.uuid.startswith(token)]
        if len(found) != 1:
            break
        chosen += found
    return tuple(chosen)


def _nvml() -> Any:
    """Return NVIDIA's bindings (they carry no types): large, and most verbs need no GPU."""
    import pynvml  # noqa: PLC0415

    return pynvml


def _gpu(pynvml: Any, index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        model=_text(pynvml.nvmlDeviceGetName(handle)),
        arch=f"sm_{major}{minor}",
        memory=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
