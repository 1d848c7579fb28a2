"""Versions and their names: CUDA builds (`cu128` is 12.8), minor releases of torch."""

from __future__ import annotations

import re

_NAME = re.compile(r"cu(\d+)(\d)")
_VERSION = re.compile(r"(\d+\.\d+)(\..*)?")


def cuda_version(name: str) -> str:
    """Return `12.8` for `cu128`, `12.8` and `12.8.1`; any other name (`cpu`) unchanged."""
    if found := _NAME.fullmatch(name):
        return f"{found[1]}.{found[2]}"
    found = _VERSION.fullmatch(name)
    return found[1] if found else name


def cuda_number(name: str) -> int:
    """Return 128 for `cu128`, to compare builds by age; 0 for a name without CUDA (`cpu`)."""
    return int(name[2:]) if _NAME.fullmatch(name) else 0


def cuda_name(version: str) -> str:
    """Return `cu128` for the version `12.8` or `12.8.90` of a CUDA runtime."""
    return "cu" + "".join(version.split(".")[:2])


def minor_of(torch: str) -> str:
    """Return `2.9` for `2.9.1`."""
    return ".".join(torch.split(".")[:2])
