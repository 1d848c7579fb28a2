"""What the dynamic loader reads of an ELF file. Pure functions over a buffer.

The dynamic segment is read as ld.so does (System V gABI, "Dynamic Linking"; glibc's gnu.version
sections), not the section headers, which a stripped file need not have. pyelftools reads the same,
but takes over 10 s for libtorch's symbol tables; an audit has 10 s for the whole image.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from mmap import mmap
from typing import Final

Buffer = bytes | memoryview | mmap

MAGIC: Final = b"\x7fELF"
PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT = 1, 4, 5, 6, 10, 11
DT_SONAME, DT_RPATH, DT_RUNPATH = 14, 15, 29
DT_GNU_HASH, DT_VERSYM = 0x6FFFFEF5, 0x6FFFFFF0
DT_VERDEF, DT_VERDEFNUM, DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
VER_HIDDEN, VER_GLOBAL = 0x8000, 1
STB_LOCAL, STB_WEAK = 0, 2
MAX_NAME: Final = 16 * 1024
"""Longest symbol name that is believed; the longest of libtorch is under 8 KiB."""
MAX_SYMBOLS: Final = 5_000_000

MACHINES: Final = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 190: "cuda"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """One undefined symbol. `version` and `file` are "" where the symbol carries no version."""

    name: str
    version: str = ""
    file: str = ""
    weak: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfFacts:
    """What the loader reads of one file; names are as in the file, `$ORIGIN` unexpanded."""

    machine: str
    bits: int = 64
    kind: int = 3
    """`e_type`: 2 a program, 3 a shared object or a position-independent program."""
    interpreter: str = ""
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    version_needs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Library → versions of it that must be there (weak ones left out)."""
    version_defs: frozenset[str] = frozenset()
    undefined: tuple[Symbol, ...] = ()
    defined: frozenset[str] = frozenset()
    """Names; with a version also `name@version`."""
    mentions: frozenset[str] = frozenset()
    """Names of libraries that stand in the file's data, to be opened by name (cuDNN only)."""


class _Image:
    """A file as the loader maps it: addresses to offsets, bounded reads."""

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
        for kind, offset, start, length in self.segments:
            if kind == PT_LOAD and start <= address < start + length:
                return offset + address - start
        raise ValueError(f"address {address:#x} is in no loaded segment")

    def slice(self, offset: int, length: int) -> memoryview:
        if offset < 0 or length < 0 or offset + length > len(self.data):
            raise ValueError(f"the file ends before offset {offset + length}")
        return self.data[offset : offset + length]


def parse_elf(data: Buffer) -> ElfFacts:
    """Read a whole ELF file (bytes, or a memoryview of a mapped file).

    Raises ValueError, with what is wrong, for anything that is not a readable ELF file.
    """
    image = _Image(data)
    tags: dict[int, int] = {}
    needed_at: list[int] = []
    for tag, value in _dynamic(image):
        if tag == DT_NEEDED:
            needed_at.append(value)
        else:
            tags.setdefault(tag, value)
    machine = MACHINES.get(image.machine, f"machine {image.machine}")
    bits = 64 if image.wide else 32
    if DT_STRTAB not in tags:
        return ElfFacts(
            machine=machine, bits=bits, kind=image.kind, interpreter=_interpreter(image)
        )
    strings = bytes(image.slice(image.offset(tags[DT_STRTAB]), tags.get(DT_STRSZ, 0)))
    versions = dict(_version_defs(image, tags, strings))
    needs = list(_version_needs(image, tags, strings))
    wanted: dict[str, set[str]] = {}
    for file, version, _, weak in needs:
        if not weak:
            wanted.setdefault(file, set()).add(version)
    by_index = {index: (file, version) for file, version, index, _ in needs}
    undefined, defined = _symbols(image, tags, strings, by_index, versions)
    return ElfFacts(
        machine=machine,
        bits=bits,
        kind=image.kind,
        interpreter=_interpreter(image),
        soname=_string(strings, tags[DT_SONAME]) if DT_SONAME in tags else "",
        needed=tuple(_string(strings, at) for at in needed_at),
        rpath=_paths(strings, tags.get(DT_RPATH)),
        runpath=_paths(strings, tags.get(DT_RUNPATH)),
        version_needs={file: frozenset(found) for file, found in sorted(wanted.items())},
        version_defs=frozenset(versions.values()),
        undefined=undefined,
        defined=defined,
    )


def _dynamic(image: _Image) -> Iterator[tuple[int, int]]:
    for kind, offset, _, length in image.segments:
        if kind != PT_DYNAMIC:
            continue
        form = "qQ" if image.wide else "iI"
        step = struct.calcsize("<" + form)
        for at in range(offset, offset + length - step + 1, step):
            tag, value = image.unpack(form, at)
            if tag == 0:
                return
            yield tag, value


def _interpreter(image: _Image) -> str:
    for kind, offset, _, length in image.segments:
        if kind == PT_INTERP:
            return bytes(image.slice(offset, length)).rstrip(b"\0").decode(errors="replace")
    return ""


def _string(strings: bytes, offset: int) -> str:
    if offset >= len(strings):
        raise ValueError(f"a name at {offset} is outside of the string table")
    end = strings.find(b"\0", offset, offset + MAX_NAME)
    if end < 0:
        raise ValueError(f"the name at {offset} does not end")
    return strings[offset:end].decode(errors="replace")


def _paths(strings: bytes, offset: int | None) -> tuple[str, ...]:
    if offset is None:
        return ()
    return tuple(part for part in _string(strings, offset).split(":") if part)


def _version_defs(
    image: _Image, tags: Mapping[int, int], strings: bytes
) -> Iterator[tuple[int, str]]:
    """Yield (index, name) of the versions that this file defines, without its base version."""
    if DT_VERDEF not in tags:
        return
    at = image.offset(tags[DT_VERDEF])
    for _ in range(min(tags.get(DT_VERDEFNUM, 0), 0x7FFF)):
        _, flags, index, count, _, aux, following = image.unpack("HHHHIII", at)
        if count and not flags & 1:
            name, _ = image.unpack("II", at + aux)
            yield index, _string(strings, name)
        if not following:
            return
        at += following


def _version_needs(
    image: _Image, tags: Mapping[int, int], strings: bytes
) -> Iterator[tuple[str, str, int, bool]]:
    """Yield (file, version, index, weak) of the versions that this file needs."""
    if DT_VERNEED not in tags:
        return
    at = image.offset(tags[DT_VERNEED])
    for _ in range(min(tags.get(DT_VERNEEDNUM, 0), 0x7FFF)):
        _, count, file_at, aux, following = image.unpack("HHIII", at)
        file = _string(strings, file_at)
        entry = at + aux
        for _ in range(count):
            _, flags, index, name, step = image.unpack("IHHII", entry)
            yield file, _string(strings, name), index & ~VER_HIDDEN, bool(flags & 2)
            if not step:
                break
            entry += step
        if not following:
            return
        at += following


def _symbols(
    image: _Image,
    tags: Mapping[int, int],
    strings: bytes,
    needs: Mapping[int, tuple[str, str]],
    defs: Mapping[int, str],
) -> tuple[tuple[Symbol, ...], frozenset[str]]:
    if DT_SYMTAB not in tags:
        return (), frozenset()
    count = _symbol_count(image, tags)
    form = struct.Struct(image.order + ("IBBHQQ" if image.wide else "IIIBBH"))
    table = image.slice(image.offset(tags[DT_SYMTAB]), count * form.size)
    version_at: memoryview | None = None
    if DT_VERSYM in tags:
        version_at = image.slice(image.offset(tags[DT_VERSYM]), count * 2)
    numbers = (
        [number for (number,) in struct.iter_unpack(image.order + "H", version_at)]
        if version_at is not None
        else [VER_GLOBAL] * count
    )
    undefined: list[Symbol] = []
    defined: set[str] = set()
    for number, row in zip(numbers, form.iter_unpack(table), strict=True):
        name_at, info, section = (
            (row[0], row[1], row[3]) if image.wide else (row[0], row[3], row[5])
        )
        if not name_at or info >> 4 == STB_LOCAL:
            continue
        name = _string(strings, name_at)
        index = number & ~VER_HIDDEN
        if section == 0:
            file, version = needs.get(index, ("", ""))
            undefined.append(
                Symbol(name=name, version=version, file=file, weak=info >> 4 == STB_WEAK)
            )
        elif number != 0:
            defined.add(name)
            if index in defs:
                defined.add(f"{name}@{defs[index]}")
    return tuple(undefined), frozenset(defined)


def _symbol_count(image: _Image, tags: Mapping[int, int]) -> int:
    """Return the length of the symbol table, which only its hash tables tell."""
    if DT_HASH in tags:
        _, count = image.unpack("II", image.offset(tags[DT_HASH]))
    elif DT_GNU_HASH in tags:
        count = _gnu_hash_count(image, image.offset(tags[DT_GNU_HASH]))
    else:
        return 0
    if count > MAX_SYMBOLS:
        raise ValueError(f"{count} symbols")
    return count


def _gnu_hash_count(image: _Image, start: int) -> int:
    buckets, first, bloom, _ = image.unpack("IIII", start)
    at = start + 16 + bloom * (8 if image.wide else 4)
    table = image.slice(at, buckets * 4)
    last = max((value for (value,) in struct.iter_unpack(image.order + "I", table)), default=0)
    if last < first:
        return first
    chain = at + buckets * 4 + (last - first) * 4
    while not image.unpack("I", chain)[0] & 1:
        chain += 4
        last += 1
    return last + 1


def sections(data: Buffer, word: str) -> list[tuple[int, int]] | None:
    """Return (offset, bytes) of the sections whose name contains a word.

    None if the file has no readable section table: then the code may stand anywhere.
    """
    try:
        image = _Image(data)
        start = image.unpack("Q", 40)[0] if image.wide else image.unpack("I", 32)[0]
        size, count, names_at = image.unpack("HHH", 58 if image.wide else 46)
        if not start or names_at >= count or size != (64 if image.wide else 40):
            return None
        form = "IIQQQQ" if image.wide else "IIIIII"
        rows = [image.unpack(form, start + number * size) for number in range(count)]
        names = bytes(image.slice(*rows[names_at][4:6]))
        return [(row[4], row[5]) for row in rows if word in _string(names, row[0])]
    except (ValueError, struct.error):
        return None
