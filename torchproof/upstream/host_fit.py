"""Whether an image runs on a host: what the image needs, the driver's version, the answer. Pure.

These are the values; `driver_rules` decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from torchproof.errors import InputError
from torchproof.model.platforms import AMD64


class Fit(StrEnum):
    """Whether an image runs on a host."""

    YES = "yes"
    MINOR = "by minor-version compatibility"
    FORWARD = "needs forward compatibility"
    NO = "no"
    UNKNOWN = "unknown"
    """The host declares neither driver nor GPU."""


class HostRule(StrEnum):
    """Which rule decided."""

    DEVICE_CODE = "device code"
    PLATFORM = "platform"
    DRIVER_KNOWS_GPU = "driver and GPU"
    TOOLKIT_DRIVER = "toolkit driver"
    MINOR_VERSION = "minor-version compatibility"
    PTX_COMPILER = "PTX needs the driver's compiler"
    FORWARD = "forward compatibility"


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A driver's version. `text` is as given; missing parts mean the oldest of the branch."""

    text: str
    numbers: tuple[int, ...]

    @property
    def branch(self) -> int:
        """550 for 550.90.07."""
        return self.numbers[0]

    def __ge__(self, other: Driver) -> bool:
        return self.numbers >= other.numbers

    def __lt__(self, other: Driver) -> bool:
        return self.numbers < other.numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageNeeds:
    """What decides on which hosts an image runs.

    `archs` is the device code that all CUDA libraries of torch share (`sm_90`, `compute_120`);
    `archs_from` says where that was read ("its lock", "published").
    """

    cell: str
    cuda: str
    platform: str = AMD64
    archs: tuple[str, ...] = ()
    archs_from: str = "published"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAnswer:
    """The answer for one image on one host. `change` lists what would make the image run."""

    fit: Fit
    rule: HostRule | None
    reason: str
    source: str
    change: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether the image runs there as it is."""
        return self.fit in (Fit.YES, Fit.MINOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """One image of the table: its answers by host name, in the order of the hosts."""

    cell: str
    answers: tuple[tuple[str, HostAnswer], ...]


def parse_driver(text: str) -> Driver:
    """Read `550.90.07`, `550.90` or a branch (`550`, `R550`), which means its oldest release.

    Raises InputError for anything else.
    """
    match = re.fullmatch(r"[Rr]?(\d{3,4})|(\d{3,4})\.(\d{1,3})(?:\.(\d{1,3}))?", text.strip())
    if match is None:
        raise InputError(
            f"{text!r} is not a driver version",
            fix="give what `nvidia-smi` prints, like 535.104.05, or a branch like R550",
        )
    return Driver(text=text.strip(), numbers=tuple(int(part) for part in match.groups() if part))
