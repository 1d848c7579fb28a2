"""Device code inside a library: containers and their entries. Pure functions over a buffer.

A container is magic 0xBA55ED50 (u32), version (u16), header size (u16), payload size (u64); its
entries follow one another: kind (u16: 1 PTX, 2 SASS), version (u16), header size (u32), payload
size (u64), compressed size (u32 at +16), architecture (u32 at +28), flags (u64 at +40). Measured
on the libraries of torch 2.7.1, 2.9.1 and 2.11.0; NVIDIA publishes no description.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from mmap import MADV_DONTNEED, mmap
from mmap import PAGESIZE as PAGE
from typing import Final

Buffer = bytes | bytearray | mmap

RELEASED: Final = 64 * 1024 * 1024
"""Bytes of a mapped file that are read before their pages are given back."""

MAGIC: Final = struct.pack("<I", 0xBA55ED50)
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ")
_ARCH_AT: Final = 28
_FLAGS_AT: Final = 40
_MIN_ENTRY: Final = 32
_COMPRESSED: Final = 0x2000


class CodeKind(IntEnum):
    """Kinds of entries that the driver chooses between; there are others."""

    PTX = 1
    SASS = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One piece of code. `offset` is where its payload starts in the buffer, `size` its bytes.

    `arch` is 90 for sm_90; `kind` 1 is PTX, 2 is SASS, others are kept whatever the GPU.
    """

    kind: int
    arch: int
    offset: int
    size: int
    compressed: bool = False

    @property
    def name(self) -> str:
        """`sm_90` for machine code, `compute_90` for PTX, "" for other kinds."""
        match self.kind:
            case CodeKind.SASS:
                return f"sm_{self.arch}"
            case CodeKind.PTX:
                return f"compute_{self.arch}"
        return ""


@dataclass(frozen=True, slots=True)
class Container:
    """One container: the driver takes the best entry of each. `offset` is that of its magic."""

    offset: int
    size: int
    """Bytes with the header."""
    entries: tuple[Entry, ...]


def containers(
    data: Buffer, within: Iterable[tuple[int, int]] | None = None
) -> Iterator[Container]:
    """Yield every well-formed container of a library, in order of offset.

    The magic may occur by chance; what does not parse to its end as a container is passed over.
    `within` are the (offset, bytes) to search, such as the fatbin sections; None is everything.
    """
    view = memoryview(data)
    for start, length in within if within is not None else [(0, len(view))]:
        end = min(start + length, len(view))
        at = data.find(MAGIC, start, end)
        while at >= 0:
            container = _container(view[:end], at)
            if container is None:
                at = data.find(MAGIC, at + 4, end)
            else:
                yield container
                at = data.find(MAGIC, at + container.size, end)


def architectures(
    data: bytes | mmap, within: Iterable[tuple[int, int]] | None = None
) -> tuple[str, ...]:
    """Return the architectures with code in a library, sorted: machine code first, then PTX.

    Pages of a mapped file are given back on the way, so that a library of gigabytes does not stay
    in memory; a private mapping would lose what was written to it.
    """
    names: set[str] = set()
    released = 0
    for found in containers(data, within):
        names |= {entry.name for entry in found.entries if not is_zeroed(data, entry)}
        done = found.offset // PAGE * PAGE
        if isinstance(data, mmap) and done - released > RELEASED:
            data.madvise(MADV_DONTNEED, released, done - released)
            released = done
    return sort_architectures(names - {""})


def is_emptied(data: bytes | mmap, within: Iterable[tuple[int, int]] | None = None) -> bool:
    """Tell whether a library has containers with code, and all of that code is zeros."""
    code = [entry for one in containers(data, within) for entry in one.entries if entry.name]
    return bool(code) and all(is_zeroed(data, entry) for entry in code)


def is_zeroed(data: Buffer, entry: Entry) -> bool:
    """Tell whether an entry's code was overwritten by zeros; real code starts with a magic."""
    return not any(data[entry.offset : entry.offset + min(entry.size, 16)])


def sort_architectures(names: set[str]) -> tuple[str, ...]:
    """Sort names such as `sm_90` and `compute_120` by kind, then by number."""
    return tuple(sorted(names, key=lambda name: (name.startswith("compute"), _number(name), name)))


def _number(name: str) -> int:
    digits = "".join(char for char in name if char.isdigit())
    return int(digits) if digits else 0


def _container(view: memoryview, at: int) -> Container | None:
    if at + _CONTAINER.size > len(view):
        return None
    _, version, header, payload = _CONTAINER.unpack_from(view, at)
    end = at + header + payload
    if version != 1 or header < _CONTAINER.size or end > len(view) or not payload:
        return None
    entries: list[Entry] = []
    position = at + header
    while position < end:
        if position + _MIN_ENTRY > end:
            return None
        kind, _, entry_header, size = _ENTRY.unpack_from(view, position)
        start = position + entry_header
        if entry_header < _MIN_ENTRY or start + size > end:
            return None
        (arch,) = struct.unpack_from("<I", view, position + _ARCH_AT)
        flags = (
            struct.unpack_from("<Q", view, position + _FLAGS_AT)[0]
            if entry_header >= _FLAGS_AT + 8
            else 0
        )
        entries.append(Entry(kind, arch, start, size, bool(flags & _COMPRESSED)))
        position = start + size
    return Container(at, end - at, tuple(entries))
