"""Which NCCL or cuDNN wheels link with a torch: from the symbols in both. An edge: asks the index.

NCCL: every nccl* name that libtorch_cuda.so asks for must be among the names that libnccl.so.2
exports. cuDNN: same major and a minor not older than the one torch was compiled against
(torch/backends/cudnn/__init__.py), and the names as well.
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
"""Packed bytes read from the end of libtorch_cuda.so, where patchelf has put its names."""
HEAD: Final = 1 << 17
"""Packed bytes read from the start of a library, where the linker puts its names."""
FEWEST: Final = 5
"""Names below which a part cannot have held the whole table."""


class Library(StrEnum):
    """What may be overridden."""

    NCCL = "nccl"
    CUDNN = "cudnn"


SONAMES: Final = {Library.NCCL: "libnccl.so.2", Library.CUDNN: "libcudnn.so."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The torch that is asked about. `cuda` "" means the build that the default index has."""

    torch: str
    cuda: str = ""
    python: str = "3.11"
    platform: str = AMD64


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One released wheel: does it link, and if not, why."""

    version: str
    links: bool
    reason: str = ""
    pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Compatibility:
    """The answer: candidates, oldest first. `floor` is the oldest above which all link."""

    torch: str
    cuda: str
    package: str
    needs: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    fetched: int
    """Bytes that came over the network."""

    @property
    def floor(self) -> str:
        """The oldest version from which on all link; "" if the newest does not."""
        floor = ""
        for candidate in reversed(self.candidates):
            if not candidate.links:
                break
            floor = candidate.version
        return floor


def compatible(library: Library, wish: Wish, indexes: Indexes, cache: Path) -> Compatibility:
    """Answer which wheels of a library link with a torch.

    Raises InputError for a torch that is not published, IndexUnreachableError if an index does not
    answer, CellError if a wheel holds no such library.
    """
    reader = _Reader(cache / "symbols")
    with reader.client:
        resolved = _resolve(wish, indexes)
        package = next(
            (one for one in resolved if re.fullmatch(rf"nvidia-{library}-cu\d+", one.name)), None
        )
        torch = next(one for one in resolved if one.name == "torch")
        if package is None:
            raise CellError(
                f"torch {wish.torch} does not take {library} from a wheel of its own",
                fix="ask about a CUDA build",
            )
        cuda = wish.cuda or _default_cuda(wish)
        needs = reader.needs(torch.wheels[0], library)
        compiled = _compiled(wish.torch, cuda) if library is Library.CUDNN else ""
        found: list[Candidate] = []
        for version, wheel in _released(package, wish, indexes, reader.client):
            pinned = str(version) == package.version
            reason = _too_old(version, compiled or (package.version if compiled is None else ""))
            if not reason:
                exports = reader.exports(wheel, library)
                lacking = sorted(set(needs) - set(exports))
                reason = f"lacks {', '.join(lacking[:3])}" if lacking else ""
            found.append(
                Candidate(version=str(version), links=not reason, reason=reason, pinned=pinned)
            )
    return Compatibility(
        torch=wish.torch,
        cuda=cuda,
        package=package.name,
        needs=tuple(needs),
        candidates=tuple(found),
        fetched=reader.fetched,
    )


def _resolve(wish: Wish, indexes: Indexes) -> tuple[Resolved, ...]:
    target = Target(python=wish.python, platform=wish.platform)
    default = _default_cuda(wish)
    if wish.cuda and wish.cuda != default:
        return compile_requirements(
            [f"torch=={wish.torch}"],
            target,
            default_index=indexes.url(PYPI),
            named_index=indexes.url(f"pytorch/{wish.cuda}"),
            from_named=load_facts().pytorch_packages,
        )
    return compile_requirements([f"torch=={wish.torch}"], target, default_index=indexes.url(PYPI))


def _default_cuda(wish: Wish) -> str:
    release = load_facts().release(wish.torch)
    if release is None:
        raise InputError(
            f"torch {wish.torch} is not known", fix="name a release like 2.7.1 (`plan` lists them)"
        )
    return release.default.get(wish.platform, "")


def _released(
    package: Resolved, wish: Wish, indexes: Indexes, client: httpx.Client
) -> Sequence[tuple[Version, WheelFile]]:
    """Return the newest build of every released version for the platform, oldest first."""
    place = indexes.url(f"pytorch/{wish.cuda}") if wish.cuda else indexes.url(PYPI)
    if wish.cuda == _default_cuda(wish):
        place = indexes.url(PYPI)
    wheels = fetch_page(place or configured_index() or _pip_default(), package.name, client)
    machine = machine_of(wish.platform)
    found: dict[Version, WheelFile] = {}
    for wheel in wheels:
        with suppress(InvalidWheelFilename):
            _, version, _, _ = parse_wheel_filename(wheel.filename)
            if machine in wheel.filename and not version.is_prerelease and not wheel.yanked:
                found[version] = wheel
    return sorted(found.items())


def _pip_default() -> str:
    """Return the index that pip asks where nothing is configured."""
    ask = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    done = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise HostError(
            "no package index is configured, and pip is not installed to ask for its own",
            fix="configure `index-url` of pip or uv, or install pip",
        )
    return done.stdout.strip()


def _compiled(torch: str, cuda: str) -> str | None:
    """Return the cuDNN that a build was compiled against; None if it is not known."""
    known: dict[str, Any] = read_data("compiled")["cudnn"]
    found = known.get(f"{torch}+{cuda}")
    return str(found) if found else None


def _too_old(version: Version, limit: str) -> str:
    """Apply torch's own rule for cuDNN: same major, minor not older."""
    if not limit:
        return ""
    least = Version(limit)
    if version.major != least.major:
        return f"another major version than {least}"
    if version.minor < least.minor:
        return f"older than {least.major}.{least.minor}, which torch was compiled against or pins"
    return ""


class _Reader:
    """Names in wheels on an index, read once: they are kept by the wheel's hash."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.client = httpx.Client(timeout=TIMEOUT, follow_redirects=True)
        self.fetched = 0

    def needs(self, wheel: WheelFile, library: Library) -> list[str]:
        """Return the names of a library that libtorch_cuda.so asks for."""
        return self._kept(wheel, f"needs-{library}", lambda parts: _needs(parts, library))

    def exports(self, wheel: WheelFile, library: Library) -> list[str]:
        """Return the names that the library of a wheel exports."""
        return self._kept(wheel, f"exports-{library}", lambda parts: _exports(parts, library))

    def _kept(self, wheel: WheelFile, kind: str, read: Any) -> list[str]:
        place = self._folder / f"{wheel.sha256 or wheel.filename}-{kind}.json"
        with suppress(OSError, ValueError):
            return [str(name) for name in json.loads(place.read_text(encoding="utf-8"))]
        with PartialWheel(self._source(wheel)) as parts:
            names: list[str] = read(parts)
            self.fetched += parts.fetched
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            draft = place.with_suffix(".new")
            draft.write_text(json.dumps(names), encoding="utf-8")
            draft.replace(place)
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
    raise CellError(f"no names of {library} are in the part of libtorch_cuda.so that was read")


def _exports(parts: PartialWheel, library: Library) -> list[str]:
    place = parts.find("/lib/" + SONAMES[library]) if library is Library.NCCL else None
    for major in ("9", "8", "10") if place is None else ():
        place = place or parts.find(f"/lib/{SONAMES[library]}{major}")
    if place is None:
        return []
    return names_of(parts.start(place, HEAD), library)


def last_text(data: bytes) -> bytes:
    """Return the string table at the end of what was read; unread bytes stand as 0xff in it."""
    end = 0
    for found in re.finditer(rb"[^\x00\x20-\x7e\xff]+", data):
        end = found.end()
    return data[end:]


def names_of(data: bytes, library: Library) -> list[str]:
    """Return the names of a library's functions in a string table, sorted.

    Linkers share ends of names: `pncclSend` stands for `ncclSend` too, exported beside it.
    """
    found = re.findall(rb"\0p?(%s[A-Z]\w*)(?=\0)" % library.encode(), data)
    return sorted({name.decode() for name in found})
