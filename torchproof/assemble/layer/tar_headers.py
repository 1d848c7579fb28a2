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
    plain = path.strip("/")
    if not plain.isascii() or size >= 8**11:
        return _header(plain, tarfile.REGTYPE, mode, size=size)
    # The standard library's bytes from templates of them: wheels have tens of thousands of files.
    name = plain.encode()
    if len(name) <= _NAME:
        return _filled(_template(mode), name, size)
    record = _pax_record(b"path", name)
    extended = _filled(_pax_template(), b"", len(record)) + record + padding(len(record))
    return extended + _filled(_template(mode), name[:_NAME], size)


def directory_header(path: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> bytes:
    """Return the header of a folder."""
    return _header(path, tarfile.DIRTYPE, mode, uid=uid, gid=gid)


def link_header(path: str, target: str) -> bytes:
    """Return the header of a symbolic link."""
    return _header(path, tarfile.SYMTYPE, 0o777, target=target)


def padding(size: int) -> bytes:
    """Return the zeros that follow a file of `size` bytes."""
    return bytes(-size % tarfile.BLOCKSIZE)


Template = tuple[bytes, int]
"""A header without size and sum, and the sum of its bytes."""


@cache
def _template(mode: int) -> Template:
    """Return the header of a file without its name."""
    return _emptied(_header("", tarfile.REGTYPE, mode))


@cache
def _pax_template() -> Template:
    """Return the extended header that precedes a header whose name is too long for it."""
    return _emptied(_header("x" * (_NAME + 1), tarfile.REGTYPE, 0o644)[: tarfile.BLOCKSIZE])


def _emptied(header: bytes) -> Template:
    empty = bytearray(header)
    empty[_SIZE], empty[_SUM] = bytes(12), b" " * 8
    return bytes(empty), sum(empty)


def _filled(template: Template, name: bytes, size: int) -> bytes:
    header, base = bytearray(template[0]), template[1]
    if name:
        header[: len(name)] = name
    header[_SIZE] = digits = b"%011o\0" % size
    header[_SUM] = b"%06o\0 " % (base + sum(name) + sum(digits))
    return bytes(header)


def _pax_record(keyword: bytes, value: bytes) -> bytes:
    """Return `LENGTH KEYWORD=VALUE` and a line feed; the length counts its own digits."""
    rest = len(keyword) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, keyword, value)


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
