"""GPU models: what a name means, and which device code a GPU runs. Pure; the data is gpus.yaml."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from torchproof.errors import InputError
from torchproof.upstream.facts import load_facts

_QUALIFIER = re.compile(
    r"\d+gb|sxm\d?|pcie|hbm\d?e?|nvl\d*|mig|\dg|super|laptop|gpu|generation|edition|server|max|q|"
    r"workstation|bus|nvgpu|developer|kit|oem|mobile"
)
"""What NVML and shops put behind a model's name without making another model of it."""
_BRAND = frozenset({"nvidia", "tesla", "geforce", "graphics", "device"})
_ARCH = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<suffix>[af]?)")


class Forward(StrEnum):
    """Whether NVIDIA allows forward compatibility (the cuda-compat package) on a kind of GPU."""

    YES = "yes"
    SOME = "some"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One compute capability. Drivers are versions, `last_branch` a branch number (580) or None."""

    id: str
    name: str = ""
    first_driver: str = ""
    last_branch: int | None = None
    integrated: bool = False
    shares_binaries_from: str = ""
    renamed_from: str = ""

    @property
    def label(self) -> str:
        """`Volta (sm_70)`."""
        return f"{self.name} ({self.id})" if self.name else self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One model. `nvlink` counts links (None: not known), `cpu` is `arm64` where it is soldered."""

    name: str
    arch: Architecture
    kind: str = ""
    forward: Forward = Forward.UNKNOWN
    nvlink: int | None = None
    cpu: str = ""

    @property
    def label(self) -> str:
        """`V100 (sm_70)`; for a bare architecture its label."""
        return self.arch.label if self.name == self.arch.id else f"{self.name} ({self.arch.id})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTable:
    """All models by their words (lower case, brand left out), and all architectures by id."""

    models: Mapping[tuple[str, ...], GpuModel]
    architectures: Mapping[str, Architecture]
    sources: Mapping[str, str]

    def find(self, text: str) -> GpuModel:
        """Return the model that a user or NVML means: `NVIDIA A100-SXM4-80GB`, `sm_90`, `9.0`.

        Raises InputError for an unknown name, with the nearest known ones.
        """
        architecture = self._architecture(text)
        if architecture is not None:
            return GpuModel(name=architecture.id, arch=architecture)
        words = _words(text)
        for length in range(len(words), 0, -1):
            model = self.models.get(words[:length])
            if model and all(_QUALIFIER.fullmatch(word) for word in words[length:]):
                return model
        names = sorted({model.name for model in self.models.values()})
        near = difflib.get_close_matches(" ".join(words).upper(), names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "known: " + ", ".join(names)
        raise InputError(
            f"unknown GPU {text!r}", fix=f"{hint} (an architecture like sm_90 works too)"
        )

    def _architecture(self, text: str) -> Architecture | None:
        match = re.fullmatch(r"(?:sm_?)?(\d{2,3})|(\d{1,2})\.(\d)", text.strip().lower())
        if match is None:
            return None
        name = f"sm_{match[1] or match[2] + match[3]}"
        found = self.architectures.get(name)
        if found is None:
            known = ", ".join(self.architectures)
            raise InputError(f"unknown GPU architecture {text!r}", fix=f"known: {known}")
        return found


def parse_gpus(data: Mapping[str, Any]) -> GpuTable:
    """Make the table from the content of gpus.yaml."""
    architectures = {
        name: Architecture(
            id=name, **{key: value for key, value in item.items() if key != "sources"}
        )
        for name, item in data["architectures"].items()
    }
    models: dict[tuple[str, ...], GpuModel] = {}
    for name, item in data["gpus"].items():
        model = GpuModel(
            name=name,
            arch=architectures[item["arch"]],
            kind=item["kind"],
            forward=Forward(data["kinds"][item["kind"]]["forward_compatibility"]),
            nvlink=item.get("nvlink"),
            cpu=item.get("cpu", ""),
        )
        for alias in (name, *item.get("aliases", ())):
            models[_words(alias)] = model
    for architecture in list(architectures.values()):
        if architecture.renamed_from:
            architectures[architecture.renamed_from] = architecture
    return GpuTable(models=models, architectures=architectures, sources=data["sources"])


@cache
def gpu_table() -> GpuTable:
    """Return the models that this package knows."""
    return parse_gpus(load_facts().gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCode:
    """What a GPU would execute: the entry (`sm_90`), and whether the driver compiles it (PTX)."""

    entry: str
    ptx: bool


def best_code(archs: Iterable[str], target: Architecture, *, cuda: str) -> DeviceCode | None:
    """Return what `target` executes of the device code `archs`; None if it can execute nothing.

    A binary `sm_XY` runs on the same major with an equal or higher minor, `sm_XYa` on X.Y alone,
    `sm_XYf` on its family (the same major from X.Y on). PTX `compute_XY` can be compiled for any
    equal or newer GPU, `compute_XYa` for X.Y alone. Binaries go between desktop and Tegra GPUs
    only from the CUDA (`13.2`) that gpus.yaml names. Source: CUDA C++ Programming Guide, and
    torch's own table.
    """
    best: tuple[tuple[bool, int], DeviceCode] | None = None
    for entry in archs:
        match = _ARCH.fullmatch(_current_name(entry, target))
        if match is None or not _runs(match, target, cuda):
            continue
        ptx = match["kind"] == "compute"
        rank = (not ptx, int(match["major"] + match["minor"]))
        if best is None or rank > best[0]:
            best = (rank, DeviceCode(entry=entry, ptx=ptx))
    return best[1] if best else None


def _current_name(entry: str, target: Architecture) -> str:
    old = target.renamed_from.removeprefix("sm_")
    return re.sub(rf"(?<=_){old}(?=[af]?$)", target.id.removeprefix("sm_"), entry) if old else entry


def _runs(entry: re.Match[str], target: Architecture, cuda: str) -> bool:
    number = target.id.removeprefix("sm_")
    major, minor = int(number[:-1]), int(number[-1])
    code_major, code_minor = int(entry["major"]), int(entry["minor"])
    same = (code_major, code_minor) == (major, minor)
    if entry["suffix"] == "a" or same:
        return same
    in_family = code_major == major and code_minor <= minor
    if entry["kind"] == "compute":
        older = (code_major, code_minor) <= (major, minor)
        return in_family if entry["suffix"] == "f" else older
    return in_family and not _other_side(entry, target, cuda)


def _other_side(entry: re.Match[str], target: Architecture, cuda: str) -> bool:
    """Tell whether one of binary and GPU is a desktop's and the other a Tegra's."""
    code = gpu_table().architectures.get(f"sm_{entry['major']}{entry['minor']}")
    if code is not None and code.integrated:
        return True
    if not target.integrated:
        return False
    since = target.shares_binaries_from
    return not since or _numbers(cuda) < _numbers(since)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _words(text: str) -> tuple[str, ...]:
    words = re.findall(r"[a-z0-9]+", re.sub(r"\b([rg]tx)(?=\d)", r"\1 ", text.lower()))
    return tuple(word for word in words if word not in _BRAND)
