"""A wheel as a zip archive: members in the order of the file, checked before use.

Nothing is inflated here. What an installer could be misled by is refused: names that climb out or
occur twice, links, members that overlap or that the two directories of a zip disagree about.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

from torchproof.errors import IntegrityError

STORED = zipfile.ZIP_STORED
DEFLATED = zipfile.ZIP_DEFLATED
_LOCAL = struct.Struct("<4s5H3I2H")
_ENCRYPTED = 0x1
_PART = r"(?!\.{1,2}(?:/|$))[^/\\\x00-\x1f\ud800-\udfff]+"
_SAFE = re.compile(f"{_PART}(?:/{_PART})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of a wheel. Bytes `[offset, offset + packed)` of the wheel are its stored form."""

    name: str
    method: int
    """`STORED` or `DEFLATED`."""
    crc: int
    size: int
    packed: int
    offset: int
    executable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """A wheel on disk whose directory has been checked. `members` are in order of offset."""

    path: Path
    size: int
    members: tuple[Member, ...]


def open_wheel(path: Path) -> WheelFile:
    """Read and check the directory of a wheel.

    Raises IntegrityError for an archive that is cut, damaged, or built to mislead.
    """
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
            end = archive.start_dir
            _check_names(path, infos)
            members: list[Member] = []
            for position, info in enumerate(infos):
                limit = infos[position + 1].header_offset if position + 1 < len(infos) else end
                offset = _data_offset(path, file.fileno(), info)
                if offset + info.compress_size > limit:
                    raise _bad(path, f"{info.filename} overlaps what follows it")
                if not info.is_dir():
                    members.append(_member(path, info, offset))
            size = path.stat().st_size
    except FileNotFoundError as error:
        raise IntegrityError("the wheel is gone", where=str(path)) from error
    except (zipfile.BadZipFile, struct.error, EOFError, ValueError, NotImplementedError) as error:
        raise _bad(path, str(error)) from error
    return WheelFile(path=path, size=size, members=tuple(members))


def safe_path(name: str) -> bool:
    """Tell whether a member name is a plain relative path without a way out."""
    return _SAFE.fullmatch(name) is not None


def _check_names(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    files: set[str] = set()
    folders: set[str] = set()
    for info in infos:
        # orig_filename: zipfile cuts a name at a NUL, which could hide the rest of it.
        name = info.orig_filename
        plain = name.removesuffix("/")
        if not safe_path(plain):
            raise _bad(path, f"member with an unsafe name: {name!r}")
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR) > info.is_dir():
            raise _bad(path, f"{name} is a link or a special file; wheels hold plain files only")
        if info.flag_bits & _ENCRYPTED:
            raise _bad(path, f"{name} is encrypted")
        if info.is_dir():
            folders.add(plain)
        elif plain in files:
            raise _bad(path, f"{name} occurs twice")
        else:
            files.add(plain)
    for name in files:
        parent = name.rpartition("/")[0]
        while parent and parent not in folders:
            folders.add(parent)
            parent = parent.rpartition("/")[0]
    both = files & folders
    if both:
        raise _bad(path, f"{min(both)} is both a file and a folder")


def _data_offset(path: Path, descriptor: int, info: zipfile.ZipInfo) -> int:
    """Return where a member's bytes start, after its local header (APPNOTE.TXT 4.3.7)."""
    if info.header_offset < 0:
        raise _bad(path, f"{info.filename}: starts before the file")
    # One read for nearly every member; a name that takes more bytes than characters needs the rest.
    header = os.pread(descriptor, _LOCAL.size + len(info.orig_filename), info.header_offset)
    magic, _, flags, method, *_, name_size, extra_size = _LOCAL.unpack_from(header)
    if len(header) < _LOCAL.size + name_size:
        header = os.pread(descriptor, _LOCAL.size + name_size, info.header_offset)
    raw = header[_LOCAL.size : _LOCAL.size + name_size]
    name = raw.decode("utf-8" if flags & 0x800 else "cp437", errors="replace")
    if magic != b"PK\x03\x04" or method != info.compress_type or name != info.orig_filename:
        raise _bad(path, f"{info.filename}: its two headers disagree")
    return int(info.header_offset + _LOCAL.size + name_size + extra_size)


def _member(path: Path, info: zipfile.ZipInfo, offset: int) -> Member:
    if info.compress_type not in (STORED, DEFLATED):
        raise _bad(path, f"{info.filename}: compression method {info.compress_type} is unknown")
    if info.compress_type == STORED and info.compress_size != info.file_size:
        raise _bad(path, f"{info.filename}: stored, but its two sizes differ")
    return Member(
        name=info.filename,
        method=info.compress_type,
        crc=info.CRC,
        size=info.file_size,
        packed=info.compress_size,
        offset=offset,
        executable=bool((info.external_attr >> 16) & 0o111),
    )


def _bad(path: Path, text: str) -> IntegrityError:
    return IntegrityError(
        f"bad wheel: {text}",
        where=path.name,
        fix="delete the cached file to download it again; "
        "if it stays bad, its publisher is at fault",
    )
