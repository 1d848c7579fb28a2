"""Reading wheels: whole, from front to back, with every promise checked on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import cast

from isal import igzip_lib, isal_zlib

from torchproof.assemble.layer.wheel_file import DEFLATED, Member, WheelFile
from torchproof.errors import IntegrityError

CHUNK = 1 << 18
"""Bytes read and inflated at a time: what fits a core's cache while it is checked and hashed."""
SENT = 1 << 20
"""Bytes passed on at a time: each piece costs a client of HTTP a tenth of a millisecond."""
SMALL = 1 << 16
"""Bytes of content up to which a member is taken in one piece."""
_STREAM_ERRORS: tuple[type[Exception], ...] = (cast("type[Exception]", igzip_lib.error), EOFError)


def read(wheel: WheelFile, member: Member) -> bytes:
    """Return the content of a member; meant for small ones. Raise IntegrityError if it is bad."""
    with Sequential(wheel, hashing=False) as reader:
        return unpacked(member, reader.packed(member), wheel.path.name)


def unpacked(member: Member, packed: Iterable[bytes], where: str) -> bytes:
    """Return a member's content from its stored form, checked. Raise IntegrityError if bad."""
    check, inflater = Check(member, where), Inflater(member, where)
    pieces: list[bytes] = []
    for piece in packed:
        for content in inflater.feed(piece):
            check.feed(content)
            pieces.append(content)
    inflater.finish()
    check.finish()
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Sequential:
    """A wheel read from front to back once, hashed on the way if wanted, `step` bytes at a time.

    Members must be requested in order of offset; what is between them is read for the hash.
    """

    def __init__(self, wheel: WheelFile, *, hashing: bool, step: int = CHUNK) -> None:
        self.where = wheel.path.name
        self._file = wheel.path.open("rb", buffering=CHUNK // 2)
        self._size = wheel.size
        self._position = 0
        self._hasher = hashlib.sha256() if hashing else None
        self._step = step

    def __enter__(self) -> Sequential:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def packed(self, member: Member) -> Iterator[bytes]:
        """Yield the stored form of a member."""
        self._skip(member.offset)
        yield from self._read(member.offset + member.packed)

    def verify(self, sha256: str) -> None:
        """Read the rest; raise IntegrityError if the wheel is not the one that was locked."""
        self._skip(self._size)
        if self._hasher and self._hasher.hexdigest() != sha256:
            raise IntegrityError(
                f"the wheel has sha256 {self._hasher.hexdigest()}, locked is {sha256}",
                where=self.where,
                fix="delete the cached file to download it again",
            )

    def _skip(self, end: int) -> None:
        if self._hasher is None:
            self._position = self._file.seek(end)
        else:
            for _ in self._read(end):
                pass

    def _read(self, end: int) -> Iterator[bytes]:
        while self._position < end:
            data = self._file.read(min(self._step, end - self._position))
            if not data:
                raise IntegrityError("the wheel became shorter while it was read", where=self.where)
            self._position += len(data)
            if self._hasher:
                self._hasher.update(data)
            yield data


class Inflater:
    """Inflates one member in bounded pieces; a stored one passes through."""

    def __init__(self, member: Member, where: str) -> None:
        self._member = member
        self._where = where
        deflated = member.method == DEFLATED
        self._stream = (
            igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE) if deflated else None
        )

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take a piece of the stored form, yield content in pieces of a mebibyte at most."""
        if self._stream is None:
            yield data
            return
        try:
            while True:
                if self._stream.eof:
                    if data or self._stream.unused_data:
                        raise self._bad("bytes after the end of its stream")
                    return
                content = self._stream.decompress(data, CHUNK)
                data = b""
                if content:
                    yield content
                if self._stream.needs_input:
                    return
        except _STREAM_ERRORS as error:
            raise self._bad(str(error)) from error

    def finish(self) -> None:
        """Raise IntegrityError if the stream has not come to its end."""
        if self._stream is not None and (not self._stream.eof or self._stream.unused_data):
            raise self._bad("its stream is cut, or followed by other bytes")

    def _bad(self, text: str) -> IntegrityError:
        return IntegrityError(
            f"bad wheel: {self._member.name}: {text}",
            where=self._where,
            fix="delete the cached file to download it again",
        )


class Check:
    """Compares size and CRC-32 of a member's content with the wheel's directory."""

    def __init__(self, member: Member, where: str) -> None:
        self._member = member
        self._where = where
        self._crc = 0
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Take the next piece of content."""
        self._crc = isal_zlib.crc32(data, self._crc)
        self._size += len(data)
        if self._size > self._member.size:
            raise self._bad(f"more than {self._member.size} bytes")

    def finish(self) -> None:
        """Raise IntegrityError if the content is not what the directory says."""
        if (self._crc, self._size) != (self._member.crc, self._member.size):
            raise self._bad(
                f"{self._size} bytes with CRC {self._crc:08x}, the directory says "
                f"{self._member.size} and {self._member.crc:08x}"
            )

    def _bad(self, text: str) -> IntegrityError:
        return IntegrityError(
            f"bad wheel: {self._member.name}: {text}",
            where=self._where,
            fix="delete the cached file to download it again",
        )
