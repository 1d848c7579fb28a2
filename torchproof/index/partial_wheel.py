"""Parts of a wheel on an index: its directory, and pieces of its members, by range requests.

A deflate stream can only be read from its start, but a block of it can be found by trial: so the
end of a member of a gigabyte is read without what precedes it.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx

from torchproof._http import NO_ANSWER, failure_text
from torchproof.errors import CellError, IndexUnreachableError

BLOCK: Final = 1 << 16
"""Bytes that one request reads at least."""
LOCAL: Final = struct.Struct("<4s5H3I2H")
WINDOW: Final = 1 << 15
"""How far back deflate refers."""
UNKNOWN: Final = b"\xff"
"""Stands for what a part refers to and was not read; it occurs in no name."""
PROVEN: Final = 1 << 17
"""Bytes that must unpack before a guessed block start is believed."""


class RangeFile(io.RawIOBase):
    """A file behind a URL, read by ranges. `fetched` counts the bytes that came."""

    def __init__(self, url: str, client: httpx.Client) -> None:
        super().__init__()
        self._url = url
        self._client = client
        self._at = 0
        self._blocks: dict[int, bytes] = {}
        self.fetched = 0
        first = self._get(0, 1)
        total = first.headers.get("content-range", "").rpartition("/")[2]
        if first.status_code != httpx.codes.PARTIAL_CONTENT or not total.isdigit():
            raise IndexUnreachableError(f"{self._name} cannot be read in parts (no range requests)")
        self.size = int(total)

    @property
    def _name(self) -> str:
        return self._url.rpartition("/")[2]

    def _get(self, start: int, length: int) -> httpx.Response:
        try:
            answer = self._client.get(
                self._url,
                headers={
                    "Range": f"bytes={start}-{start + length - 1}",
                    "Accept-Encoding": "identity",
                },
            )
        except NO_ANSWER as error:
            raise IndexUnreachableError(
                f"{self._name} does not answer: {failure_text(error)}"
            ) from error
        if not answer.is_success:
            raise IndexUnreachableError(f"{self._name} answers HTTP {answer.status_code}")
        self.fetched += len(answer.content)
        return answer

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; nothing is fetched."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Read from the position on; blocks that came once are kept."""
        end = self.size if size < 0 else min(self.size, self._at + size)
        if end <= self._at:
            return b""
        first, last = self._at // BLOCK, (end - 1) // BLOCK
        missing = [number for number in range(first, last + 1) if number not in self._blocks]
        if missing:
            start = missing[0] * BLOCK
            length = min(self.size, (missing[-1] + 1) * BLOCK) - start
            data = self._get(start, length).content
            for number in range(missing[0], missing[-1] + 1):
                at = number * BLOCK - start
                self._blocks[number] = data[at : at + BLOCK]
        joined = b"".join(self._blocks[number] for number in range(first, last + 1))
        data = joined[self._at - first * BLOCK : end - first * BLOCK]
        self._at = end
        return data


@dataclass(frozen=True, slots=True)
class Place:
    """Where a member's packed bytes are."""

    offset: int
    packed: int
    size: int
    deflated: bool


class PartialWheel:
    """A wheel read in parts, from a URL or a file. Raises CellError if it is not a wheel."""

    def __init__(self, source: RangeFile | Path) -> None:
        self._file: io.RawIOBase | io.BufferedReader = (
            source.open("rb") if isinstance(source, Path) else source
        )
        try:
            with zipfile.ZipFile(self._file) as archive:
                self._members = {info.filename: info for info in archive.infolist()}
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise CellError(f"not a wheel: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def fetched(self) -> int:
        """Bytes that came over the network."""
        return self._file.fetched if isinstance(self._file, RangeFile) else 0

    def find(self, ending: str) -> Place | None:
        """Return where the member is whose name has this ending; None if there is none."""
        info = next((info for name, info in self._members.items() if name.endswith(ending)), None)
        if info is None:
            return None
        header = self._read(info.header_offset, LOCAL.size)
        if len(header) < LOCAL.size:
            raise CellError(f"{info.filename} is outside its wheel")
        fields = LOCAL.unpack(header)
        return Place(
            offset=info.header_offset + LOCAL.size + fields[9] + fields[10],
            packed=info.compress_size,
            size=info.file_size,
            deflated=info.compress_type == zipfile.ZIP_DEFLATED,
        )

    def start(self, place: Place, packed: int) -> bytes:
        """Return what the first bytes of a member unpack to."""
        data = self._read(place.offset, min(packed, place.packed))
        if not place.deflated:
            return data
        try:
            return zlib.decompressobj(-15).decompress(data)
        except zlib.error as error:
            raise CellError(f"a member cannot be unpacked: {error}") from error

    def end(self, place: Place, packed: int) -> bytes:
        """Return what about the last bytes of a member unpack to.

        What refers to bytes before the part that was read is 0xff. Empty if no block of the
        stream starts there.
        """
        length = min(packed, place.packed)
        data = self._read(place.offset + place.packed - length, length)
        if not place.deflated:
            return data
        if length == place.packed:
            return zlib.decompressobj(-15).decompress(data)
        return resume_inflate(data)

    def _read(self, offset: int, length: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(length) or b""


def resume_inflate(data: bytes) -> bytes:
    """Unpack the end of a deflate stream (RFC 1951) from the first block start found in it."""
    limit = min(len(data) // 2, 1 << 21) * 8
    shifted = [_shift(data, bits) for bits in range(8)]
    for bit in range(limit):
        stream, at = shifted[bit % 8], bit // 8
        # A block that is not the last (0), with its own codes (10): the low bits are 100.
        if stream[at] & 7 != 4 or stream[at] >> 3 > 29 or stream[at + 1] & 31 > 29:
            continue
        if len(_inflate(stream[at : at + 4096])) < 1024:
            continue
        whole = _inflate(stream[at:])
        if len(whole) >= PROVEN:
            return whole
    return b""


def _shift(data: bytes, bits: int) -> bytes:
    if not bits:
        return data
    return (int.from_bytes(data, "little") >> bits).to_bytes(len(data), "little")


def _inflate(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(-15, zdict=UNKNOWN * WINDOW)
    try:
        return unpacker.decompress(data)
    except zlib.error:
        return b""
