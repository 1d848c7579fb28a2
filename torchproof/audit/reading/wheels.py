"""The wheels of a lock → facts, laid out as they would be installed. An edge."""

from __future__ import annotations

import mmap
import posixpath
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, cast

from isal import isal_zlib

from torchproof.assemble.layer.installation import site_packages
from torchproof.assemble.layer.wheel_file import STORED, Member, open_wheel
from torchproof.audit.facts import (
    NOTHING,
    Detail,
    FileEntry,
    FileKind,
    ImageFacts,
    RunConfig,
    Subject,
)
from torchproof.audit.reading.file_detail import inspect, wanted
from torchproof.audit.reading.layer_scan import IN_MEMORY, LayerScan, merge, problem
from torchproof.audit.reading.scan_cache import FactCache
from torchproof.errors import IntegrityError, TorchproofError
from torchproof.image.layers import PREFIX
from torchproof.index.download import sha256_of
from torchproof.model.lock import Lock, LockedWheel

CHUNK: Final = 128 << 10
"""Bytes of a wheel that are read at a time."""
UNPACKING: Final = cast("type[Exception]", isal_zlib.error)
LARGEST_WHEEL: Final = 16 << 30
"""Bytes unpacked above which a wheel is taken for a bomb; torch's are under 2 GB."""
SCHEMES: Final = {"scripts": "bin", "headers": "include"}


def open_wheels(
    lock: Lock, paths: Mapping[str, Path], cache: FactCache | None = None
) -> ImageFacts:
    """Take the facts of a lock's wheels. `paths` maps file names to wheels that are here.

    Of each wheel, only libraries and metadata are inflated, once on a machine. A wheel that is not
    the locked one, or is damaged, gives a finding.
    """
    cache = cache or FactCache()
    scans = []
    for wheel in lock.wheels:
        path = paths.get(wheel.filename)
        if path is not None:
            key = f"wheel {wheel.sha256} {lock.python}"
            scans.append(cache.get(key, partial(scan_wheel, path, wheel, lock.python)))
    merged = merge(scans)
    return ImageFacts(
        name=lock.cell,
        subject=Subject.WHEELS,
        files=merged.files,
        detail=lambda entry: merged.details.get(entry.path, NOTHING),
        config=RunConfig(platform=lock.platform),
        lock=lock,
        problems=merged.problems,
    )


def scan_wheel(path: Path, wheel: LockedWheel, python: str) -> LayerScan:
    """Read one wheel as a layer."""
    scan = LayerScan()
    fix = "fetch the wheel again; if it stays so, lock the cell again"
    try:
        found = sha256_of(path) if path.parent.name != wheel.sha256 else wheel.sha256
        if found != wheel.sha256:
            text = (
                f"{wheel.filename}: the lock has sha256 {wheel.sha256[:12]}… from the index "
                f"{wheel.index}, the file has {found[:12]}…"
            )
            scan.problems.append(problem("pins.hash", text, str(path), fix))
        file = open_wheel(path)
        if sum(member.size for member in file.members) > LARGEST_WHEEL:
            raise IntegrityError(f"unpacks to more than {LARGEST_WHEEL >> 30} GiB: a zip bomb")
        site = site_packages(python)
        for member in file.members:
            _take(scan, path, member, site)
    except (TorchproofError, OSError) as error:
        text = error.message if isinstance(error, TorchproofError) else str(error)
        scan.problems.append(problem("files.wheel", f"{wheel.filename}: {text}", str(path), fix))
    return scan


def _take(scan: LayerScan, path: Path, member: Member, site: str) -> None:
    if member.name.endswith("/"):
        return
    place = _installed(member.name, site)
    parent = posixpath.dirname(place)
    while parent not in scan.entries and parent != "/":
        scan.entries[parent] = _folder(parent)
        parent = posixpath.dirname(parent)
    entry = FileEntry(path=place, size=member.size, mode=0o755 if member.executable else 0o644)
    scan.entries[place] = entry
    scan.size += member.size
    if wanted(entry):
        scan.details[place] = _read(path, member, entry)


def _folder(path: str) -> FileEntry:
    return FileEntry(path=path, kind=FileKind.DIRECTORY, mode=0o755)


def _installed(name: str, site: str) -> str:
    """Return where an installer puts a member (PEP 427, "Installing a wheel")."""
    first, _, rest = name.partition("/")
    if not first.endswith(".data"):
        return f"{site}/{name}"
    scheme, _, below = rest.partition("/")
    if scheme in ("purelib", "platlib"):
        return f"{site}/{below}"
    return posixpath.join(PREFIX, SCHEMES.get(scheme, ""), below)


def _read(path: Path, member: Member, entry: FileEntry) -> Detail:
    if member.size <= IN_MEMORY:
        return inspect(entry, b"".join(inflate(path, member)))
    with tempfile.TemporaryFile(prefix="torchproof-") as file:
        for piece in inflate(path, member):
            file.write(piece)
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return inspect(entry, data)


def inflate(path: Path, member: Member) -> Iterator[bytes]:
    """Yield a member's content. Raises IntegrityError if it is not as long as it says."""
    done = 0
    for piece in _pieces(path, member):
        done += len(piece)
        if done > member.size:
            break
        yield piece
    if done != member.size:
        raise IntegrityError(f"{member.name} does not unpack to the {member.size} bytes it says")


def _pieces(path: Path, member: Member) -> Iterator[bytes]:
    unpack = _stored if member.method == STORED else _inflater()
    with path.open("rb") as file:
        file.seek(member.offset)
        left = member.packed
        while left:
            packed = file.read(min(CHUNK, left))
            if not packed:
                return
            left -= len(packed)
            try:
                yield unpack(packed)
            except UNPACKING as error:
                raise IntegrityError(f"{member.name} cannot be unpacked: {error}") from error


def _stored(data: bytes) -> bytes:
    return data


def _inflater() -> Callable[[bytes], bytes]:
    unpacker = isal_zlib.decompressobj(-15)
    return unpacker.decompress
