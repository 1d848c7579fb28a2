"""The layout of an ELF file: header, segments, sections and string tables; bounded reads. Pure.

A damaged file may name any offset: every read is checked against the buffer first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from mmap import mmap
from typing import Final

Buffer = bytes | memoryview | mmap

MAGIC: Final = b"\x7fELF"
PT_LOAD: Final = 1
MAX_NAME: Final = 16 * 1024
"""Bytes that a name may have; the longest symbol of libtorch is under 8 KiB."""


class ElfFile:
    """An ELF file as the loader maps it. Raises ValueError if its header is not readable.

    `wide` is true for 64 bits; `kind` and `machine` are `e_type` and `e_machine` of the header;
    `segments` are (type, offset, address, bytes in the file).
    """

    def __init__(self, data: Buffer) -> None:
        self.data = memoryview(data)
        if bytes(self.data[:4]) != MAGIC:
            raise ValueError("not an ELF file")
        if len(self.data) < 52:
            raise ValueError(f"the ELF header ends after {len(self.data)} bytes")
        self.wide = self.data[4] == 2
        order = {1: "<", 2: ">"}.get(self.data[5])
        if self.data[4] not in (1, 2) or order is None:
            raise ValueError("unknown ELF class or byte order")
        self.order = order
        self.kind, self.machine = self.unpack("HH", 16)
        fields = self.unpack("QQQIHHH" if self.wide else "IIIIHHH", 24)
        self.segments = list(self._segments(fields[1], fields[5], fields[6]))

    def unpack(self, fields: str, offset: int) -> tuple[int, ...]:
        """Return the fields (`struct` codes) at an offset; ValueError if the file ends before."""
        form = struct.Struct(self.order + fields)
        if offset < 0 or offset + form.size > len(self.data):
            raise ValueError(f"the file ends before offset {offset + form.size}")
        return form.unpack_from(self.data, offset)

    def _segments(self, start: int, size: int, count: int) -> Iterator[tuple[int, int, int, int]]:
        if count and size != (56 if self.wide else 32):
            raise ValueError(f"program headers of {size} bytes")
        for number in range(count):
            at = start + number * size
            if self.wide:
                kind, _, offset, address, _, length = self.unpack("IIQQQQ", at)
            else:
                kind, offset, address, _, length = self.unpack("IIIII", at)
            yield kind, offset, address, length

    def offset(self, address: int) -> int:
        """Return where in the file an address is loaded from; ValueError if it is not loaded."""
        for kind, offset, start, length in self.segments:
            if kind == PT_LOAD and start <= address < start + length:
                return offset + address - start
        raise ValueError(f"address {address:#x} is not in a loaded segment")

    def slice(self, offset: int, length: int) -> memoryview:
        """Return a part of the file; ValueError if the file ends before."""
        if offset < 0 or length < 0 or offset + length > len(self.data):
            raise ValueError(f"the file ends before offset {offset + length}")
        return self.data[offset : offset + length]


def string_at(strings: bytes, offset: int) -> str:
    """Return the name at an offset of a string table; ValueError if none ends there."""
    if offset >= len(strings):
        raise ValueError(f"a name at {offset} is outside the string table")
    end = strings.find(b"\0", offset, offset + MAX_NAME)
    if end < 0:
        raise ValueError(f"the name at {offset} does not end")
    return strings[offset:end].decode(errors="replace")


def sections(data: Buffer, word: str) -> list[tuple[int, int]] | None:
    """Return (offset, bytes) of the sections whose name contains a word.

    None if the file has no readable section table: then the code may be anywhere.
    """
    try:
        elf = ElfFile(data)
        start = elf.unpack("Q", 40)[0] if elf.wide else elf.unpack("I", 32)[0]
        size, count, names_at = elf.unpack("HHH", 58 if elf.wide else 46)
        if not start or names_at >= count or size != (64 if elf.wide else 40):
            return None
        form = "IIQQQQ" if elf.wide else "IIIIII"
        rows = [elf.unpack(form, start + number * size) for number in range(count)]
        names = bytes(elf.slice(*rows[names_at][4:6]))
        return [(row[4], row[5]) for row in rows if word in string_at(names, row[0])]
    except (ValueError, struct.error):
        return None
