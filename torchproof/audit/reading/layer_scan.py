"""Layers → facts, from the bytes of a layer or from a directory of this machine. An edge.

A layer as overlay2 keeps it on disk marks what it removes with a character device 0:0, and opaque
directories with an extended attribute.
"""

from __future__ import annotations

import mmap
import os
import posixpath
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from torchproof.audit.facts import NOTHING, Detail, FileEntry, FileKind
from torchproof.audit.reading.directory import read_file, walk
from torchproof.audit.reading.file_detail import inspect, wanted
from torchproof.errors import HostError
from torchproof.image.layer_tar import (
    ClimbingName,
    LayerError,
    LayerTar,
    Member,
    MemberKind,
    OpaqueDirectory,
    Removed,
)
from torchproof.model.results import Finding, Level

IN_MEMORY: Final = 8 << 20
"""Bytes of a member up to which it is read in memory; above, through a temporary file."""
_KINDS: Final = {
    MemberKind.FILE: FileKind.FILE,
    MemberKind.DIRECTORY: FileKind.DIRECTORY,
    MemberKind.SYMLINK: FileKind.LINK,
}


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

    A layer that ends too early, or is not a tar, gives a finding; what was read before it stays.
    Raises HostError if zstd is needed and not installed, or the disk is full.
    """
    scan = LayerScan()
    layer = LayerTar(chunks, name)
    again = "build or push the image again"
    try:
        for event in layer:
            match event:
                case Member(kind=MemberKind.HARD_LINK):
                    _link(scan, event)
                case Member():
                    _take(scan, event)
                case Removed():
                    scan.removed.append(event.path)
                case OpaqueDirectory():
                    scan.opaque.append(event.path)
                case ClimbingName():
                    clean = "make the layer again with a tool that writes clean paths"
                    scan.problems.append(problem("files.climbs", str(event), name, clean))
    except LayerError as error:
        scan.problems.append(problem("files.layer", error.message, name, again))
    except OSError as error:
        raise HostError(f"cannot read a layer: {error}", where=name) from error
    scan.size = layer.unpacked
    return scan


def _take(scan: LayerScan, member: Member) -> None:
    kind = _KINDS.get(member.kind, FileKind.OTHER)
    entry = FileEntry(
        path=member.path,
        kind=kind,
        mode=member.mode,
        uid=member.uid,
        gid=member.gid,
        size=member.size,
        target=member.target,
    )
    scan.entries[entry.path] = entry
    scan.details.pop(entry.path, None)
    if kind is FileKind.FILE and wanted(entry):
        scan.details[entry.path] = _read(entry, member)


def _link(scan: LayerScan, member: Member) -> None:
    """Take a hard link: the same file as one that came before in this layer."""
    first = scan.entries.get(member.target)
    if first is None:
        return
    first = replace(first, inode=first.inode or first.path)
    scan.entries |= {first.path: first, member.path: replace(first, path=member.path)}
    if first.path in scan.details:
        scan.details[member.path] = scan.details[first.path]


def _read(entry: FileEntry, member: Member) -> Detail:
    if entry.size <= IN_MEMORY:
        return inspect(entry, member.read())
    pieces = member.pieces()
    head = next(pieces, b"")
    if head[:4] != b"\x7fELF":
        return inspect(entry, head)
    with tempfile.TemporaryFile(prefix="torchproof-") as file:
        file.write(head)
        for piece in pieces:
            file.write(piece)
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return inspect(entry, data)


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
