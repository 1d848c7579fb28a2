"""The platforms that cells can have, and their names in other programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from torchproof.errors import InputError, did_you_mean

PlatformName = Literal["linux/amd64", "linux/arm64"]
"""A platform as matrix.yaml and OCI images write it."""

AMD64: Final = "linux/amd64"
ARM64: Final = "linux/arm64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """One platform.

    `machine` is its name in `uname -m`, wheel tags and environment markers; `debian` is the
    architecture of its packages in Debian and Ubuntu.
    """

    name: PlatformName
    machine: str
    debian: str


PLATFORMS: Final = (
    Platform(name=AMD64, machine="x86_64", debian="amd64"),
    Platform(name=ARM64, machine="aarch64", debian="arm64"),
)


def find_platform(name: str) -> Platform | None:
    """Look a platform up by any of its names: `linux/amd64`, `x86_64` or `amd64`."""
    return next(
        (item for item in PLATFORMS if name in (item.name, item.machine, item.debian)), None
    )


def platform_of(name: str) -> Platform:
    """Like `find_platform`, but raises InputError for a platform that cells cannot have."""
    if (platform := find_platform(name)) is not None:
        return platform
    known = [platform.name for platform in PLATFORMS]
    raise InputError(
        f"{name!r} is not a platform that cells can have",
        fix=did_you_mean(name, known) or f"the platforms are {' and '.join(known)}",
    )


def machine_of(name: str) -> str:
    """Return `x86_64` for `linux/amd64`; raises like `platform_of`."""
    return platform_of(name).machine


def platform_of_tag(tag: str) -> str | None:
    """Return the platform of a wheel's platform tag: `linux/amd64` for `manylinux_2_28_x86_64`.

    None for the tag `any`, and for systems other than Linux.
    """
    if "linux" not in tag:
        return None
    return next((item.name for item in PLATFORMS if tag.endswith(item.machine)), None)
