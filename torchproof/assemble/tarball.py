"""Tar headers that depend on nothing but their arguments (POSIX pax format)."""

from __future__ import annotations

import tarfile
from typing import Final

MTIME: Final = 315532800
"""1980-01-01, the oldest time a zip knows. Every file has it: equal inputs, equal layers."""
END: Final = bytes(2 * tarfile.BLOCKSIZE)


def file_header(path: str, size: int, mode: int) -> bytes:
    """Return the header of a regular file owned by root. `path` is absolute."""
    return _header(path, tarfile.REGTYPE, mode, size=size)


def directory_header(path: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> bytes:
    """Return the header of a folder."""
    return _header(path, tarfile.DIRTYPE, mode, uid=uid, gid=gid)


def link_header(path: str, target: str) -> bytes:
    """Return the header of a symbolic link."""
    return _header(path, tarfile.SYMTYPE, 0o777, target=target)


def padding(size: int) -> bytes:
    """Return the zeros that follow a file of `size` bytes."""
    return bytes(-size % tarfile.BLOCKSIZE)


def _header(
    path: str,
    kind: bytes,
    mode: int,
    *,
    size: int = 0,
    uid: int = 0,
    gid: int = 0,
    target: str = "",
) -> bytes:
    info = tarfile.TarInfo(path.strip("/"))
    info.type, info.mode, info.size, info.linkname = kind, mode, size, target
    info.uid, info.gid, info.mtime = uid, gid, MTIME
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
