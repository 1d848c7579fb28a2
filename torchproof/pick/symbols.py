"""Which NCCL or cuDNN wheels link with a torch, by the symbols in both. An edge: asks the index.

NCCL: libnccl.so.2 must export every nccl* name that libtorch_cuda.so needs. cuDNN: the same
major version, a minor not older than the one torch was compiled against
(torch/backends/cudnn/__init__.py), and all names too.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import httpx
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from torchproof.errors import CellError, HostError, InputError
from torchproof.index.indexes import Indexes
from torchproof.index.partial_wheel import UNKNOWN, PartialWheel, RangeFile
from torchproof.index.simple_api import TIMEOUT, fetch_page
from torchproof.index.uv import Resolved, Target, WheelFile, compile_requirements, configured_index
from torchproof.model.lock import PYPI
from torchproof.model.platforms import AMD64, machine_of
from torchproof.upstream.data_files import read_data
from torchproof.upstream.facts import load_facts

TORCH_MEMBER: Final = "torch/lib/libtorch_cuda.so"
TAILS: Final = (6 << 20, 16 << 20, 48 << 20)
"""Compressed bytes read from the end of libtorch_cuda.so, where patchelf puts its names."""
HEAD: Final = 1 << 17
"""Compressed bytes read from the start of a library, where the linker puts its names."""
FEWEST: Final = 5
"""With fewer names than this, the part that was read did not hold the whole table."""


class Library(StrEnum):
    """A library whose wheel a cell may override."""

    NCCL = "nccl"
    CUDNN = "cudnn"


SONAMES: Final = {Library.NCCL: "libnccl.so.2", Library.CUDNN: "libcudnn.so."}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkQuery:
    """The torch to link with. `cuda` "" means the build that the default index has."""

    torch: str
    cuda: str = ""
    python: str = "3.11"
    platform: str = AMD64


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelCandidate:
    """One released wheel: whether it links, and if not, why."""

    version: str
    links: bool
    reason: str = ""
    pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Compatibility:
    """The answer: candidates, oldest first."""

    torch: str
    cuda: str
    package: str
    needs: tuple[str, ...]
    candidates: tuple[WheelCandidate, ...]
    fetched: int
    """Bytes that came over the network."""

    @property
    def floor(self) -> str:
        """The oldest version such that it and all newer ones link; "" if the newest does not."""
        floor = ""
        for candidate in reversed(self.candidates):
            if not candidate.links:
                break
            floor = candidate.version
        return floor


def compatible(library: Library, query: LinkQuery, indexes: Indexes, cache: Path) -> Compatibility:
    """Return which released wheels of a library link with a torch.

    Raises InputError for a torch that is not published, IndexUnreachableError if an index does not
    answer, CellError if a wheel holds no such library.
    """
    reader = _Reader(cache / "symbols")
    with reader.client:
        resolved = _resolve(query, indexes)
        package = next(
            (item for item in resolved if re.fullmatch(rf"nvidia-{library}-cu\d+", item.name)), None
        )
        torch = next(item for item in resolved if item.name == "torch")
        if package is None:
            raise CellError(
                f"torch {query.torch} does not get {library} from a separate wheel",
                fix="ask about a CUDA build",
            )
        cuda = query.cuda or _default_cuda(query)
        needs = reader.needs(torch.wheels[0], library)
        compiled = _compiled(query.torch, cuda) if library is Library.CUDNN else ""
        found: list[WheelCandidate] = []
        for version, wheel in _released(package, query, indexes, reader.client):
            pinned = str(version) == package.version
            reason = _too_old(version, compiled or (package.version if compiled is None else ""))
            if not reason:
                exports = reader.exports(wheel, library)
                lacking = sorted(set(needs) - set(exports))
                reason = f"lacks {', '.join(lacking[:3])}" if lacking else ""
            found.append(
                WheelCandidate(version=str(version), links=not reason, reason=reason, pinned=pinned)
            )
    return Compatibility(
        torch=query.torch,
        cuda=cuda,
        package=package.name,
        needs=tuple(needs),
        candidates=tuple(found),
        fetched=reader.fetched,
    )


def _resolve(query: LinkQuery, indexes: Indexes) -> tuple[Resolved, ...]:
    target = Target(python=query.python, platform=query.platform)
    default = _default_cuda(query)
    if query.cuda and query.cuda != default:
        return compile_requirements(
            [f"torch=={query.torch}"],
            target,
            default_index=indexes.url(PYPI),
            named_index=indexes.url(f"pytorch/{query.cuda}"),
            from_named=load_facts().pytorch_packages,
        )
    return compile_requirements([f"torch=={query.torch}"], target, default_index=indexes.url(PYPI))


def _default_cuda(query: LinkQuery) -> str:
    release = load_facts().release(query.torch)
    if release is None:
        raise InputError(
            f"torch {query.torch} is not a known release", fix="give one like 2.7.1 (see `plan`)"
        )
    return release.default.get(query.platform, "")


def _released(
    package: Resolved, query: LinkQuery, indexes: Indexes, client: httpx.Client
) -> Sequence[tuple[Version, WheelFile]]:
    """Return the newest build of every released version for the platform, oldest first."""
    place = indexes.url(f"pytorch/{query.cuda}") if query.cuda else indexes.url(PYPI)
    if query.cuda == _default_cuda(query):
        place = indexes.url(PYPI)
    wheels = fetch_page(place or configured_index() or _pip_default(), package.name, client)
    machine = machine_of(query.platform)
    found: dict[Version, WheelFile] = {}
    for wheel in wheels:
        with suppress(InvalidWheelFilename):
            _, version, _, _ = parse_wheel_filename(wheel.filename)
            if machine in wheel.filename and not version.is_prerelease and not wheel.yanked:
                found[version] = wheel
    return sorted(found.items())


def _pip_default() -> str:
    """Return the index that pip uses by default."""
    program = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise HostError(
            "no package index is configured, and without pip its default index is not known",
            fix="configure `index-url` of pip or uv, or install pip",
        )
    return done.stdout.strip()


def _compiled(torch: str, cuda: str) -> str | None:
    """Return the cuDNN that a build was compiled against; None if unknown."""
    known: dict[str, Any] = read_data("compiled")["cudnn"]
    found = known.get(f"{torch}+{cuda}")
    return str(found) if found else None


def _too_old(version: Version, limit: str) -> str:
    """Apply torch's own rule for cuDNN: same major, minor not older."""
    if not limit:
        return ""
    least = Version(limit)
    if version.major != least.major:
        return f"its major version is not that of {least}"
    if version.minor < least.minor:
        return f"older than {least.major}.{least.minor}, which torch was compiled against or pins"
    return ""


class _Reader:
    """Symbol names in wheels of an index, read once and cached by the wheel's hash."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.client = httpx.Client(timeout=TIMEOUT, follow_redirects=True)
        self.fetched = 0

    def needs(self, wheel: WheelFile, library: Library) -> list[str]:
        """Return the names of a library that libtorch_cuda.so needs."""
        return self._cached(wheel, f"needs-{library}", lambda parts: _needs(parts, library))

    def exports(self, wheel: WheelFile, library: Library) -> list[str]:
        """Return the names that the library of a wheel exports."""
        return self._cached(wheel, f"exports-{library}", lambda parts: _exports(parts, library))

    def _cached(self, wheel: WheelFile, kind: str, read: Any) -> list[str]:
        cache = self._folder / f"{wheel.sha256 or wheel.filename}-{kind}.json"
        with suppress(OSError, ValueError):
            return [str(name) for name in json.loads(cache.read_text(encoding="utf-8"))]
        with PartialWheel(self._source(wheel)) as parts:
            names: list[str] = read(parts)
            self.fetched += parts.fetched
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            draft = cache.with_suffix(".new")
            draft.write_text(json.dumps(names), encoding="utf-8")
            draft.replace(cache)
        return names

    def _source(self, wheel: WheelFile) -> RangeFile | Path:
        if wheel.url.startswith("file:"):
            return Path(httpx.URL(wheel.url).path)
        return RangeFile(wheel.url, self.client)


def _needs(parts: PartialWheel, library: Library) -> list[str]:
    place = parts.find(TORCH_MEMBER)
    if place is None:
        raise CellError("the torch wheel has no libtorch_cuda.so", fix="ask about a CUDA build")
    for length in (HEAD * 8, *TAILS):
        data = parts.start(place, length) if length == HEAD * 8 else parts.end(place, length)
        names = names_of(data, library)
        if len(names) >= FEWEST and UNKNOWN not in last_text(data):
            return names
    raise CellError(f"no {library} symbols in the part of libtorch_cuda.so that was read")


def _exports(parts: PartialWheel, library: Library) -> list[str]:
    place = parts.find("/lib/" + SONAMES[library]) if library is Library.NCCL else None
    for major in ("9", "8", "10") if place is None else ():
        place = place or parts.find(f"/lib/{SONAMES[library]}{major}")
    if place is None:
        return []
    return names_of(parts.start(place, HEAD), library)


def last_text(data: bytes) -> bytes:
    """Return the string table at the end of what was read; unread bytes are 0xff in it."""
    end = 0
    for found in re.finditer(rb"[^\x00\x20-\x7e\xff]+", data):
        end = found.end()
    return data[end:]


def names_of(data: bytes, library: Library) -> list[str]:
    """Return the names of a library's functions in a string table, sorted.

    Linkers merge common endings: `pncclSend` also stands for `ncclSend`, exported beside it.
    """
    found = re.findall(rb"\0p?(%s[A-Z]\w*)(?=\0)" % library.encode(), data)
    return sorted({name.decode() for name in found})
