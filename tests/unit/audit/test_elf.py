"""The ELF reader, against pyelftools on this Python's own libraries, and against broken files."""

from __future__ import annotations

import struct
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchproof.audit.facts import FileEntry
from torchproof.audit.reading.elf_facts import ElfFacts, parse_elf
from torchproof.audit.reading.elf_file import sections
from torchproof.audit.reading.file_detail import inspect

LIBRARIES = sorted(Path(sysconfig.get_path("stdlib")).glob("lib-dynload/*.so"))[:12]
BINARIES = [Path(sys.executable).resolve(), *LIBRARIES]


def oracle(path: Path) -> tuple[list[str], set[str], set[str], dict[str, set[str]]]:
    with path.open("rb") as file:
        elf = ELFFile(file)
        dynamic = next(part for part in elf.iter_sections() if isinstance(part, DynamicSection))
        table = elf.get_section_by_name(".dynsym")
        assert isinstance(table, SymbolTableSection)
        needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]
        undefined, defined = set(), set()
        for symbol in table.iter_symbols():
            if not symbol.name or symbol["st_info"]["bind"] == "STB_LOCAL":
                continue
            (undefined if symbol["st_shndx"] == "SHN_UNDEF" else defined).add(symbol.name)
        versions: dict[str, set[str]] = {}
        found = elf.get_section_by_name(".gnu.version_r")
        if isinstance(found, GNUVerNeedSection):
            for need, auxes in found.iter_versions():
                versions[need.name] = {aux.name for aux in auxes}
        return needed, undefined, defined, versions


@pytest.mark.parametrize("path", BINARIES, ids=lambda path: path.name)
def test_reads_what_pyelftools_reads(path: Path) -> None:
    facts = parse_elf(path.read_bytes())
    needed, undefined, defined, versions = oracle(path)
    assert list(facts.needed) == needed
    assert {symbol.name for symbol in facts.undefined} == undefined
    assert {name for name in facts.defined if "@" not in name} == defined
    assert {file: set(names) for file, names in facts.version_needs.items()} == versions


def test_names_the_version_and_file_of_an_undefined_symbol() -> None:
    facts = parse_elf(LIBRARIES[0].read_bytes())
    versioned = [symbol for symbol in facts.undefined if symbol.file == "libc.so.6"]
    assert versioned
    assert all(symbol.version.startswith("GLIBC_") for symbol in versioned)


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF" + bytes(60)])
def test_what_is_no_elf_file_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"ELF|header"):
        parse_elf(data)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damage_never_ends_in_another_error(data: st.DataObject) -> None:
    whole = bytearray(LIBRARIES[0].read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    damaged = bytes(whole[:cut])
    with suppress(ValueError, struct.error):
        assert isinstance(parse_elf(damaged), ElfFacts)
    sections(damaged, "fatbin")


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("libnccl.so.2", b"", "is empty"),
        ("libnccl.so.2", b"\x7fELF\x02\x01\x01" + bytes(30), "corrupt"),
        ("libnccl.so.2", b"<html>503</html>", "does not start as an ELF file"),
    ],
)
def test_a_broken_library_says_so(name: str, data: bytes, words: str) -> None:
    entry = FileEntry(path=f"/usr/lib/{name}", size=len(data))
    assert words in inspect(entry, data).broken


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/usr/lib/libc.so", b"/* GNU ld script */ GROUP ( libc.so.6 )"),
        ("/usr/lib/libm.so", b"INPUT(libm.so.6)"),
        ("/etc/ld.so.conf", b"include /etc/ld.so.conf.d/*.conf"),
        ("/etc/ld.so.cache", b"glibc-ld.so.cache1.1"),
    ],
)
def test_what_only_looks_like_a_library_is_not_broken(path: str, data: bytes) -> None:
    assert not inspect(FileEntry(path=path, size=len(data)), data).broken


def test_secrets_are_never_kept() -> None:
    for path in ("/etc/shadow", "/root/.netrc", "/root/.docker/config.conf"):
        assert inspect(FileEntry(path=path, size=6, mode=0o755), b"secret").text is None
