"""What the dynamic loader reads from an ELF file. Pure functions over a buffer.

The dynamic segment is read as ld.so does (System V gABI, "Dynamic Linking"; glibc's gnu.version
sections), not the section headers, which a stripped file need not have. pyelftools reads the same,
but takes over 10 s for libtorch's symbol tables; an audit has 10 s for the whole image.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from torchproof.audit.reading.elf_file import Buffer, ElfFile, string_at

PT_DYNAMIC, PT_INTERP = 2, 3
DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT = 1, 4, 5, 6, 10, 11
DT_SONAME, DT_RPATH, DT_RUNPATH = 14, 15, 29
DT_GNU_HASH, DT_VERSYM = 0x6FFFFEF5, 0x6FFFFFF0
DT_VERDEF, DT_VERDEFNUM, DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
VER_HIDDEN, VER_GLOBAL = 0x8000, 1
STB_LOCAL, STB_WEAK = 0, 2
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
    """What the loader reads from one file; names are as in the file, `$ORIGIN` unexpanded."""

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
    """Library → versions of it that must exist (weak ones left out)."""
    version_defs: frozenset[str] = frozenset()
    undefined: tuple[Symbol, ...] = ()
    defined: frozenset[str] = frozenset()
    """Names; with a version also `name@version`."""
    mentions: frozenset[str] = frozenset()
    """Names of libraries that the file's data contains, to be opened by name (cuDNN only)."""


def parse_elf(data: Buffer) -> ElfFacts:
    """Read a whole ELF file (bytes, or a memoryview of a mapped file).

    Raises ValueError, with what is wrong, for anything that is not a readable ELF file.
    """
    elf = ElfFile(data)
    tags: dict[int, int] = {}
    needed_at: list[int] = []
    for tag, value in _dynamic(elf):
        if tag == DT_NEEDED:
            needed_at.append(value)
        else:
            tags.setdefault(tag, value)
    machine = MACHINES.get(elf.machine, f"machine {elf.machine}")
    bits = 64 if elf.wide else 32
    if DT_STRTAB not in tags:
        return ElfFacts(machine=machine, bits=bits, kind=elf.kind, interpreter=_interpreter(elf))
    strings = bytes(elf.slice(elf.offset(tags[DT_STRTAB]), tags.get(DT_STRSZ, 0)))
    versions = dict(_version_defs(elf, tags, strings))
    needs = list(_version_needs(elf, tags, strings))
    wanted: dict[str, set[str]] = {}
    for file, version, _, weak in needs:
        if not weak:
            wanted.setdefault(file, set()).add(version)
    by_index = {index: (file, version) for file, version, index, _ in needs}
    undefined, defined = _symbols(elf, tags, strings, by_index, versions)
    return ElfFacts(
        machine=machine,
        bits=bits,
        kind=elf.kind,
        interpreter=_interpreter(elf),
        soname=string_at(strings, tags[DT_SONAME]) if DT_SONAME in tags else "",
        needed=tuple(string_at(strings, at) for at in needed_at),
        rpath=_paths(strings, tags.get(DT_RPATH)),
        runpath=_paths(strings, tags.get(DT_RUNPATH)),
        version_needs={file: frozenset(found) for file, found in sorted(wanted.items())},
        version_defs=frozenset(versions.values()),
        undefined=undefined,
        defined=defined,
    )


def _dynamic(elf: ElfFile) -> Iterator[tuple[int, int]]:
    for kind, offset, _, length in elf.segments:
        if kind != PT_DYNAMIC:
            continue
        form = "qQ" if elf.wide else "iI"
        step = struct.calcsize("<" + form)
        for at in range(offset, offset + length - step + 1, step):
            tag, value = elf.unpack(form, at)
            if tag == 0:
                return
            yield tag, value


def _interpreter(elf: ElfFile) -> str:
    for kind, offset, _, length in elf.segments:
        if kind == PT_INTERP:
            return bytes(elf.slice(offset, length)).rstrip(b"\0").decode(errors="replace")
    return ""


def _paths(strings: bytes, offset: int | None) -> tuple[str, ...]:
    if offset is None:
        return ()
    return tuple(part for part in string_at(strings, offset).split(":") if part)


def _version_defs(
    elf: ElfFile, tags: Mapping[int, int], strings: bytes
) -> Iterator[tuple[int, str]]:
    """Yield (index, name) of the versions that this file defines, without its base version."""
    if DT_VERDEF not in tags:
        return
    at = elf.offset(tags[DT_VERDEF])
    for _ in range(min(tags.get(DT_VERDEFNUM, 0), 0x7FFF)):
        _, flags, index, count, _, aux, following = elf.unpack("HHHHIII", at)
        if count and not flags & 1:
            name, _ = elf.unpack("II", at + aux)
            yield index, string_at(strings, name)
        if not following:
            return
        at += following


def _version_needs(
    elf: ElfFile, tags: Mapping[int, int], strings: bytes
) -> Iterator[tuple[str, str, int, bool]]:
    """Yield (file, version, index, weak) of the versions that this file needs."""
    if DT_VERNEED not in tags:
        return
    at = elf.offset(tags[DT_VERNEED])
    for _ in range(min(tags.get(DT_VERNEEDNUM, 0), 0x7FFF)):
        _, count, file_at, aux, following = elf.unpack("HHIII", at)
        file = string_at(strings, file_at)
        entry = at + aux
        for _ in range(count):
            _, flags, index, name, step = elf.unpack("IHHII", entry)
            yield file, string_at(strings, name), index & ~VER_HIDDEN, bool(flags & 2)
            if not step:
                break
            entry += step
        if not following:
            return
        at += following


def _symbols(
    elf: ElfFile,
    tags: Mapping[int, int],
    strings: bytes,
    needs: Mapping[int, tuple[str, str]],
    defs: Mapping[int, str],
) -> tuple[tuple[Symbol, ...], frozenset[str]]:
    if DT_SYMTAB not in tags:
        return (), frozenset()
    count = _symbol_count(elf, tags)
    form = struct.Struct(elf.order + ("IBBHQQ" if elf.wide else "IIIBBH"))
    table = elf.slice(elf.offset(tags[DT_SYMTAB]), count * form.size)
    version_at: memoryview | None = None
    if DT_VERSYM in tags:
        version_at = elf.slice(elf.offset(tags[DT_VERSYM]), count * 2)
    numbers = (
        [number for (number,) in struct.iter_unpack(elf.order + "H", version_at)]
        if version_at is not None
        else [VER_GLOBAL] * count
    )
    undefined: list[Symbol] = []
    defined: set[str] = set()
    for number, row in zip(numbers, form.iter_unpack(table), strict=True):
        name_at, info, section = (row[0], row[1], row[3]) if elf.wide else (row[0], row[3], row[5])
        if not name_at or info >> 4 == STB_LOCAL:
            continue
        name = string_at(strings, name_at)
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


def _symbol_count(elf: ElfFile, tags: Mapping[int, int]) -> int:
    """Return the length of the symbol table, which only the hash tables give."""
    if DT_HASH in tags:
        _, count = elf.unpack("II", elf.offset(tags[DT_HASH]))
    elif DT_GNU_HASH in tags:
        count = _gnu_hash_count(elf, elf.offset(tags[DT_GNU_HASH]))
    else:
        return 0
    if count > MAX_SYMBOLS:
        raise ValueError(f"{count} symbols")
    return count


def _gnu_hash_count(elf: ElfFile, start: int) -> int:
    buckets, first, bloom, _ = elf.unpack("IIII", start)
    at = start + 16 + bloom * (8 if elf.wide else 4)
    table = elf.slice(at, buckets * 4)
    last = max((value for (value,) in struct.iter_unpack(elf.order + "I", table)), default=0)
    if last < first:
        return first
    chain = at + buckets * 4 + (last - first) * 4
    while not elf.unpack("I", chain)[0] & 1:
        chain += 4
        last += 1
    return last + 1
