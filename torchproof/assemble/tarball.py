"""Tar headers that depend on nothing but their arguments (POSIX pax format)."""

from __future__ import annotations

import tarfile
from functools import cache
from typing import Final

MTIME: Final = 315532800
"""1980-01-01, the oldest time a zip knows. Every file has it: equal inputs, equal layers."""
END: Final = bytes(2 * tarfile.BLOCKSIZE)
_NAME: Final = 100
_SIZE: Final = slice(124, 136)
_SUM: Final = slice(148, 156)


def file_header(path: str, size: int, mode: int) -> bytes:
    """Return the header of a regular file owned by root. `path` is absolute."""
    name = path.strip("/").encode("utf-8")
    if len(name) > _NAME or not name.isascii() or size >= 8**11:
        return _header(path, tarfile.REGTYPE, mode, size=size)
    # The same bytes from a template: wheels have tens of thousands of files.
    template, base = _template(mode)
    header = bytearray(template)
    header[: len(name)] = name
    header[_SIZE] = digits = b"%011o\0" % size
    header[_SUM] = b"%06o\0 " % (base + sum(name) + sum(digits))
    return bytes(header)


def directory_header(path: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> bytes:
    """Return the header of a folder."""
    return _header(path, tarfile.DIRTYPE, mode, uid=uid, gid=gid)


def link_header(path: str, target: str) -> bytes:
    """Return the header of a symbolic link."""
    return _header(path, tarfile.SYMTYPE, 0o777, target=target)


def padding(size: int) -> bytes:
    """Return the zeros that follow a file of `size` bytes."""
    return bytes(-size % tarfile.BLOCKSIZE)


@cache
def _template(mode: int) -> tuple[bytes, int]:
    """Return a file's header without name and size, and the sum of its bytes."""
    header = bytearray(_header("", tarfile.REGTYPE, mode))
    header[_SIZE], header[_SUM] = bytes(12), b" " * 8
    return bytes(header), sum(header)


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
