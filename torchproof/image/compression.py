"""The stored bytes of a layer → its tar: undoes gzip or zstd, which the first bytes tell. An edge.

gzip streams: no more is held than the pieces that come in and go out. zstd goes through a file.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain
from shutil import which
from typing import Final, cast

from isal import igzip_lib

from torchproof.errors import HostError

CHUNK: Final = 1 << 20
"""Bytes that are read at a time."""
_ISAL_ERROR = cast("type[Exception]", igzip_lib.error)


class Compression(StrEnum):
    """How the tar of a layer is stored (OCI image specification 1.1, "Layer Media Types")."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


_MAGIC: Final = {b"\x1f\x8b": Compression.GZIP, b"\x28\xb5\x2f\xfd": Compression.ZSTD}
_LONGEST_MAGIC: Final = max(map(len, _MAGIC))


class CompressionError(ValueError):
    """Bytes that cannot be unpacked, or are compressed in another way than was promised."""


def compression_of(media_type: str) -> Compression:
    """Return the compression that a layer's media type promises."""
    for one in (Compression.GZIP, Compression.ZSTD):
        if media_type.endswith(one):
            return one
    return Compression.NONE


def decompressed(chunks: Iterable[bytes], promised: Compression | None = None) -> Iterator[bytes]:
    """Return the plain bytes of a stream, in pieces of a few MiB.

    With `promised`, other bytes are refused. Raises CompressionError, at once or while pieces are
    taken, and HostError if zstd is needed and not installed.
    """
    pieces = filter(None, chunks)
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= _LONGEST_MAGIC:
            break
    found = next((one for magic, one in _MAGIC.items() if head.startswith(magic)), Compression.NONE)
    if promised not in (None, found):
        raise CompressionError(f"its compression is {found}, not {promised} as its media type says")
    whole = chain((head,) if head else (), pieces)
    match found:
        case Compression.GZIP:
            return _gunzip(whole)
        case Compression.ZSTD:
            return _unzstd(whole)
        case _:
            return whole


def _gunzip(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Unpack gzip members that follow one another (RFC 1952, 2.2)."""
    packed = b""
    while packed := packed or next(pieces, b""):
        unpacker = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        while not unpacker.eof:
            try:
                data = unpacker.decompress(packed, CHUNK * 4)
            except _ISAL_ERROR as error:
                raise CompressionError(str(error)) from error
            packed = b""
            if data:
                yield data
            if unpacker.needs_input and not unpacker.eof:
                packed = next(pieces, b"")
                if not packed:
                    raise CompressionError("the compressed data ends too early")
        packed = unpacker.unused_data


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
            raise CompressionError("zstd cannot unpack it")
