"""What upstream publishes and needs, as data with sources. Never versions in code.

`load_facts` reads the YAML files beside this module once; everything it returns is immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from packaging.version import Version

from torchproof.model.platforms import ARM64
from torchproof.model.versions import cuda_version, minor_of
from torchproof.upstream.data_files import read_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One CUDA build of one release. A pin that no source gives is None.

    `archs` are the device code of the x86_64 wheel, as `sm_90` (binary) or `compute_120` (PTX).
    """

    cuda: str
    platforms: tuple[str, ...]
    confirmed: bool
    sources: tuple[str, ...]
    pins_from: tuple[str, ...] = ()
    official: bool = True
    """Part of the release matrix; False: published outside it."""
    cudnn: str | None = None
    nccl: str | None = None
    triton: str | None = None
    archs: tuple[str, ...] = ()
    archs_arm64: tuple[str, ...] = ()

    def archs_on(self, platform: str) -> tuple[str, ...]:
        """Return the architectures of the wheel for `linux/amd64` or `linux/arm64`."""
        return self.archs_arm64 if platform == ARM64 else self.archs


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One release of torch. `default` maps a platform to the CUDA of the plain wheel."""

    version: str
    default: Mapping[str, str]
    python: tuple[str, ...]
    python_arm64: tuple[str, ...]
    builds: Mapping[str, Build]

    @property
    def minor(self) -> str:
        """`2.9.1` → `2.9`."""
        return minor_of(self.version)

    def python_on(self, platform: str) -> tuple[str, ...]:
        """Return the Python versions that this release has wheels for."""
        return self.python_arm64 if platform == ARM64 else self.python


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceGate:
    """The oldest CUDA that CMake accepts for releases `first` to `last` (minor versions)."""

    first: str
    last: str
    minimum: str
    message: str
    where: str

    def covers(self, torch: str) -> bool:
        """Tell whether a release falls under this gate."""
        return Version(self.first) <= Version(minor_of(torch)) <= Version(self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """Where it is written that a CUDA is not built from minor version `first` on."""

    cuda: str
    first: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """What `bootstrap: debian/bookworm` can give: its Python and packages by purpose."""

    python: str
    packages: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts. `sources` maps a source's key to its text."""

    releases: Mapping[str, Release]
    source_build: tuple[SourceGate, ...]
    absences: tuple[Absence, ...]
    release_matrix: Mapping[str, str]
    minor_version_floor: Mapping[str, str]
    """CUDA major → oldest Linux driver."""
    toolkit_driver: Mapping[str, str]
    """CUDA major.minor → driver the toolkit shipped with."""
    pytorch_url: str
    pytorch_packages: tuple[str, ...]
    distributions: Mapping[str, Distribution]
    gpus: Mapping[str, Any] = field(default_factory=dict)
    """Content of gpus.yaml: model names → architecture and abilities."""
    sources: Mapping[str, str] = field(default_factory=dict)

    def cite(self, keys: tuple[str, ...]) -> str:
        """Spell out source keys for a reader."""
        return "; ".join(self.sources.get(key, key) for key in keys)

    def cuda_names(self) -> tuple[str, ...]:
        """Return every CUDA name that is known to exist, oldest first (`cu118` …)."""
        names = {"cu" + version.replace(".", "") for version in self.toolkit_driver}
        names |= {cuda for release in self.releases.values() for cuda in release.builds}
        return tuple(sorted(names, key=lambda name: Version(cuda_version(name))))

    def driver_floor(self, cuda: str) -> str:
        """Return the oldest Linux driver for `cu128` under minor-version compatibility."""
        return self.minor_version_floor.get(cuda_version(cuda).split(".")[0], "")

    def newest_patch(self, minor: str) -> str | None:
        """`2.9` → `2.9.1`; None if no release of that minor version is known."""
        found = [version for version in self.releases if minor_of(version) == minor]
        return max(found, key=Version, default=None)

    def published(self, torch: str, cuda: str, python: str, platform: str) -> bool:
        """Tell whether the data knows a wheel of exactly this."""
        release = self.releases.get(torch)
        build = release.builds.get(cuda) if release else None
        return (
            release is not None
            and build is not None
            and platform in build.platforms
            and python in release.python_on(platform)
        )

    def release(self, torch: str) -> Release | None:
        """Return a release; for a patch newer than the data, the newest known patch."""
        known = self.releases.get(torch)
        if known is not None:
            return known
        sibling = self.newest_patch(minor_of(torch))
        return self.releases[sibling] if sibling else None


def _release(version: str, data: dict[str, Any]) -> Release:
    builds = {
        cuda: Build(
            cuda=cuda,
            platforms=tuple(build["platforms"]),
            confirmed=build["status"] == "confirmed",
            sources=tuple(build["sources"]),
            pins_from=tuple(build["pins_from"]),
            official=build.get("official", True),
            cudnn=build.get("cudnn"),
            nccl=build.get("nccl"),
            triton=build.get("triton"),
            archs=tuple(build.get("archs", ())),
            archs_arm64=tuple(build.get("archs_arm64", ())),
        )
        for cuda, build in data["builds"].items()
    }
    return Release(
        version=version,
        default=data["default"],
        python=tuple(data["python"]),
        python_arm64=tuple(data.get("python_arm64", data["python"])),
        builds=builds,
    )


@cache
def load_facts() -> Facts:
    """Read the facts that are part of the package."""
    upstream, drivers = read_data("upstream"), read_data("drivers")
    indexes, bases, gpus = read_data("indexes"), read_data("bases"), read_data("gpus")
    sources: dict[str, str] = {}
    for document in (upstream, drivers, indexes, bases):
        sources |= document.pop("sources", {})
    return Facts(
        releases={
            version: _release(version, data) for version, data in upstream["releases"].items()
        },
        source_build=tuple(
            SourceGate(
                first=gate["from"],
                last=gate["to"],
                minimum=gate["minimum"],
                message=gate["message"],
                where=gate["where"],
            )
            for gate in upstream["source_build"]
        ),
        absences=tuple(
            Absence(cuda=item["cuda"], first=item["from"], sources=tuple(item["sources"]))
            for item in upstream["absences"]
        ),
        release_matrix=upstream["release_matrix"],
        minor_version_floor={
            major: item["driver"] for major, item in drivers["minor_version_floor"].items()
        },
        toolkit_driver={version: item["driver"] for version, item in drivers["toolkit"].items()},
        pytorch_url=indexes["pytorch"]["url"],
        pytorch_packages=tuple(indexes["pytorch"]["packages"]),
        distributions={
            name: Distribution(
                python=item["python"],
                packages={key: tuple(value) for key, value in item["packages"].items()},
            )
            for name, item in bases.items()
        },
        gpus=gpus,
        sources=sources,
    )
