"""Layers → facts: tars are read as a stream, nothing is unpacked into place. An edge.

Whiteouts follow the OCI image specification ("Whiteouts", "Opaque Whiteout"); a layer as overlay2
keeps it on disk marks them with a character device 0:0 and an extended attribute.
"""

from __future__ import annotations

import io
import mmap
import os
import posixpath
import stat
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import which
from typing import IO, Final

from isal import igzip_lib, isal_zlib

from torchproof.audit.facts import NOTHING, Detail, FileEntry, FileKind
from torchproof.audit.reading.directory import read_file, walk
from torchproof.audit.reading.file_detail import inspect, wanted
from torchproof.errors import HostError
from torchproof.model.results import Finding, Level

UNPACKING: Final[type[Exception]] = isal_zlib.error  # type: ignore[assignment]
WHITEOUT: Final = ".wh."
OPAQUE: Final = ".wh..wh..opq"
CHUNK: Final = 1 << 20
IN_MEMORY: Final = 8 << 20
"""Bytes of a member up to which it is read in memory; above, through a temporary file."""
LARGEST_LAYER: Final = 256 << 30
"""Bytes unpacked above which a layer is taken for a bomb."""


@dataclass(slots=True)
class LayerScan:
    """What one layer holds. `removed` are paths, `opaque` directories emptied before it."""

    entries: dict[str, FileEntry] = field(default_factory=dict)
    details: dict[str, Detail] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)
    size: int = 0


def problem(rule: str, message: str, where: str, fix: str) -> Finding:
    """Make a finding of reading itself; such findings have rules of their own (`files.…`)."""
    return Finding(rule=rule, level=Level.ERROR, message=message, where=where, fix=fix)


def scan_tar(chunks: Iterable[bytes], name: str) -> LayerScan:
    """Read a layer from the bytes of its tar, plain or compressed by gzip or zstd.

    A layer that ends too early, or is no tar, gives a finding; what was read before it stays.
    Raises HostError if zstd is needed and not installed, or the disk is full.
    """
    scan = LayerScan()
    stream = _Stream(_plain(iter(chunks)))
    again = "build or push the image again"
    try:
        # The mode with "|" reads forward only; links and devices are never made.
        with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as archive:
            for member in archive:
                _take(scan, archive, member, name)
    except (tarfile.TarError, EOFError, UNPACKING, ValueError) as error:
        scan.problems.append(problem("files.layer", f"layer cannot be read: {error}", name, again))
    except struct.error:
        scan.problems.append(problem("files.layer", "layer ends too early", name, again))
    except OSError as error:
        raise HostError(f"cannot read a layer: {error}", where=name) from error
    scan.size = stream.count
    return scan


def _take(scan: LayerScan, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> None:
    path = _inside(member.name)
    if path is None:
        scan.problems.append(
            problem(
                "files.climbs",
                f"{member.name!r} climbs out of the root of the image",
                name,
                "make the layer again with a tool that writes clean paths",
            )
        )
        return
    folder, base = posixpath.split(path)
    if base == OPAQUE:
        scan.opaque.append(folder)
        return
    if base.startswith(WHITEOUT):
        hidden = base.removeprefix(WHITEOUT)
        if hidden not in ("", ".", ".."):
            scan.removed.append(posixpath.join(folder, hidden))
        return
    if path == "/":
        return
    if member.islnk():
        _link(scan, path, member)
        return
    entry = _entry(path, member)
    scan.entries[path] = entry
    scan.details.pop(path, None)
    if member.isfile() and member.size and wanted(entry):
        source = archive.extractfile(member)
        if source is not None:
            scan.details[path] = _read(entry, source)
    elif member.isfile() and not member.size and wanted(entry):
        scan.details[path] = inspect(entry, b"")


def _inside(name: str) -> str | None:
    """Return the absolute path of a member; None if it climbs above the root."""
    parts: list[str] = []
    for part in name.split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            return None
        parts.append(part)
    return "/" + "/".join(parts)


def _link(scan: LayerScan, path: str, member: tarfile.TarInfo) -> None:
    """Take a hard link: the same file as one that came before in this layer."""
    target = _inside(member.linkname)
    first = scan.entries.get(target or "")
    if first is None:
        return
    first = replace(first, inode=first.inode or first.path)
    scan.entries |= {first.path: first, path: replace(first, path=path)}
    if first.path in scan.details:
        scan.details[path] = scan.details[first.path]


def _entry(path: str, member: tarfile.TarInfo) -> FileEntry:
    kind = FileKind.OTHER
    if member.isfile():
        kind = FileKind.FILE
    elif member.isdir():
        kind = FileKind.DIRECTORY
    elif member.issym():
        kind = FileKind.LINK
    return FileEntry(
        path=path,
        kind=kind,
        mode=stat.S_IMODE(member.mode),
        uid=member.uid,
        gid=member.gid,
        size=member.size if member.isfile() else 0,
        target=member.linkname if member.issym() else "",
    )


def _read(entry: FileEntry, source: IO[bytes]) -> Detail:
    if entry.size <= IN_MEMORY:
        return inspect(entry, source.read())
    head = source.read(CHUNK)
    if head[:4] != b"\x7fELF":
        return inspect(entry, head)
    with tempfile.TemporaryFile(prefix="torchproof-") as file:
        file.write(head)
        while piece := source.read(CHUNK):
            file.write(piece)
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return inspect(entry, data)


class _Stream(io.RawIOBase):
    """A file to read forward from pieces; counts what came through."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self._pieces = pieces
        self._rest = b""
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        found = [self._rest]
        have = len(self._rest)
        while size < 0 or have < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            found.append(piece)
            have += len(piece)
        data = b"".join(found)
        cut = len(data) if size < 0 else size
        self._rest = data[cut:]
        self.count += len(data[:cut])
        if self.count > LARGEST_LAYER:
            raise ValueError(f"it unpacks to more than {LARGEST_LAYER} bytes")
        return data[:cut]


def _plain(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Undo the compression of a stream, which its first bytes tell."""
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= 4:
            break
    whole = _chain(head, pieces)
    if head.startswith(b"\x1f\x8b"):
        return _gunzip(whole)
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _unzstd(whole)
    return whole


def _chain(head: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from pieces


def _gunzip(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Unpack gzip members that follow one another."""
    rest = b""
    while True:
        rest = rest or next(pieces, b"")
        if not rest:
            return
        unpacker = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        while not unpacker.eof:
            data = unpacker.decompress(rest, CHUNK * 4)
            rest = b""
            if data:
                yield data
            if unpacker.eof:
                break
            if unpacker.needs_input:
                rest = next(pieces, b"")
                if not rest:
                    raise EOFError("the compressed data ends too early")
        rest = unpacker.unused_data


def _unzstd(pieces: Iterator[bytes]) -> Iterator[bytes]:
    program = which("zstd")
    if program is None:
        raise HostError(
            "a layer is compressed by zstd, and the program zstd is not installed",
            fix="apt-get install zstd",
        )
    with tempfile.TemporaryFile(prefix="torchproof-") as packed:
        for piece in pieces:
            packed.write(piece)
        packed.seek(0)
        with subprocess.Popen(
            [program, "-dc"], stdin=packed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as running:
            output = running.stdout
            while output is not None and (data := output.read(CHUNK)):
                yield data
        if running.returncode:
            raise EOFError("zstd cannot unpack it")


def scan_directory(root: Path) -> LayerScan:
    """Read a layer as overlay2 keeps it on this machine."""
    scan = LayerScan()
    for entry in walk(root):
        place = root / entry.path[1:]
        if entry.kind is FileKind.OTHER and _is_whiteout(place):
            scan.removed.append(entry.path)
            continue
        if entry.kind is FileKind.DIRECTORY and _is_opaque(place):
            scan.opaque.append(entry.path)
        scan.entries[entry.path] = entry
        if entry.kind is FileKind.FILE:
            detail = read_file(place, entry)
            scan.size += entry.size
            if detail is not NOTHING:
                scan.details[entry.path] = detail
    return scan


def _is_whiteout(place: Path) -> bool:
    status = place.lstat()
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _is_opaque(place: Path) -> bool:
    try:
        return os.getxattr(place, "trusted.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Merged:
    """The files of all layers over one another, as a container would see them."""

    files: Mapping[str, FileEntry]
    details: Mapping[str, Detail]
    problems: tuple[Finding, ...]


def merge(scans: Iterable[LayerScan]) -> Merged:
    """Lay layers over one another, bottom first."""
    files: dict[str, FileEntry] = {}
    details: dict[str, Detail] = {}
    problems: list[Finding] = []
    for number, scan in enumerate(scans):
        problems += scan.problems
        gone = set(scan.removed)
        gone |= {
            entry.path
            for entry in scan.entries.values()
            if entry.kind is not FileKind.DIRECTORY
            and (found := files.get(entry.path)) is not None
            and found.kind is FileKind.DIRECTORY
        }
        _remove(files, details, gone, set(scan.opaque) if files else set())
        for entry in scan.entries.values():
            _add_parents(files, entry)
            files[entry.path] = replace(entry, layer=number) if number else entry
            details.pop(entry.path, None)
        details |= scan.details
    return Merged(files, details, tuple(problems))


def _add_parents(files: dict[str, FileEntry], entry: FileEntry) -> None:
    """Add the directories above a path that no layer names, as an unpacking tool makes them."""
    parent = posixpath.dirname(entry.path)
    while parent != "/" and parent not in files:
        files[parent] = FileEntry(path=parent, kind=FileKind.DIRECTORY, mode=0o755)
        parent = posixpath.dirname(parent)


def _remove(
    files: dict[str, FileEntry], details: dict[str, Detail], gone: set[str], opaque: set[str]
) -> None:
    if not gone and not opaque:
        return
    for path in list(files):
        above = posixpath.dirname(path)
        hit = path in gone
        while not hit and above != "/":
            hit = above in gone or above in opaque
            above = posixpath.dirname(above)
        if hit:
            del files[path]
            details.pop(path, None)
