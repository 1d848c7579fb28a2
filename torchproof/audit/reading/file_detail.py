"""One file → what rules may know of it. Pure: the caller has opened or mapped the file."""

from __future__ import annotations

import posixpath
import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from mmap import mmap
from typing import Final

from torchproof.assemble.layer import fatbin
from torchproof.audit.facts import NOTHING, Detail, FileEntry
from torchproof.audit.reading.elf_facts import parse_elf
from torchproof.audit.reading.elf_file import MAGIC, sections

TEXT_LIMIT: Final = 64 * 1024
"""Bytes kept of a text whose size nothing bounds."""
TABLE_LIMIT: Final = 32 * 1024 * 1024
"""Bytes kept of the tables of installed packages (RECORD of torch: 2 MB)."""

TABLES: Final = frozenset({"METADATA", "RECORD", "status"})
TEXTS: Final = frozenset(
    {
        "EXTERNALLY-MANAGED",
        "INSTALLER",
        "WHEEL",
        "direct_url.json",
        "entry_points.txt",
        "os-release",
        "poetry.lock",
        "pyproject.toml",
        "pyvenv.cfg",
        "sitecustomize.py",
        "usercustomize.py",
        "uv.lock",
        "version.json",
        "version.py",
    }
)
TEXT_ENDINGS: Final = (".conf", ".list", ".pth", ".sources", "constraint.txt", "constraints.txt")
SECRET: Final = re.compile(
    r"^/etc/(g?shadow|sudoers|ssh|ssl/private)|/\.(netrc|pypirc|aws|ssh|kube|docker)\b"
)
"""Never kept: a cache of facts must not hold an image's secrets."""
LIBRARY: Final = re.compile(r"\.so(\.\d+)*$")
SONAME: Final = re.compile(rb"(lib[\w-]+\.so)(\.\d+)?\0")
LINKER_SCRIPT: Final = re.compile(rb"^\s*(/\*|INPUT|GROUP|OUTPUT_FORMAT)")
PROGRAM_DIRECTORIES: Final = ("bin", "sbin")


def keeps_text(entry: FileEntry) -> bool:
    """Tell whether the text of a file is kept for the rules."""
    if SECRET.search(entry.path):
        return False
    folder, name = posixpath.split(entry.path)
    if name in TABLES:
        return folder.endswith(".dist-info") or folder.startswith("/var/lib/dpkg")
    return (
        name in TEXTS
        or name.endswith(TEXT_ENDINGS)
        or (entry.size <= TEXT_LIMIT and (bool(entry.mode & 0o111) or folder.startswith("/etc")))
        or (name.startswith("requirements") and name.endswith(".txt"))
    )


def may_hold_code(entry: FileEntry) -> bool:
    """Tell whether a file is worth opening as ELF: a library, or a program by its mode."""
    folder, name = posixpath.split(entry.path)
    if ".so" in name:
        return True
    return bool(entry.mode & 0o111) and (
        "." not in name or posixpath.basename(folder) in PROGRAM_DIRECTORIES
    )


def wanted(entry: FileEntry) -> bool:
    """Tell whether `inspect` would find anything in a regular file."""
    return keeps_text(entry) or may_hold_code(entry)


def inspect(entry: FileEntry, data: bytes | mmap) -> Detail:
    """Read one regular file from its whole content; broken content gives `Detail.broken`."""
    head = bytes(data[:4])
    name = posixpath.basename(entry.path)
    if head == MAGIC:
        return _code(name, data)
    if LIBRARY.search(name) and not LINKER_SCRIPT.match(bytes(data[:64])):
        what = "is empty" if not entry.size else "does not start as an ELF file"
        return Detail(broken=what)
    if not keeps_text(entry):
        return NOTHING
    limit = TABLE_LIMIT if name in TABLES else TEXT_LIMIT
    text = bytes(data[:limit])
    return NOTHING if b"\0" in text[:1024] else Detail(text=text.decode(errors="replace"))


def _code(name: str, data: bytes | mmap) -> Detail:
    try:
        facts = parse_elf(data)
    except (ValueError, struct.error) as error:
        return Detail(broken=f"is a corrupt ELF file: {error}")
    if name.startswith("libcudnn"):
        suffix = facts.soname.partition(".so")[2]
        names = frozenset(_mentions(data, b"libcudnn", suffix))
        facts = replace(facts, mentions=names - {facts.soname})
    places = _device_code(data)
    archs = fatbin.architectures(data, places)
    return Detail(elf=facts, archs=archs, emptied=not archs and fatbin.is_emptied(data, places))


def _device_code(data: bytes | mmap) -> list[tuple[int, int]] | None:
    """Return where device code may be, so that gigabytes need not be read; None is everywhere.

    Libraries without a fatbin section have none. cuFFT has a small one, and most of its code in
    plain data: where the section is not most of the file, all of it is searched.
    """
    found = sections(data, "fatbin")
    if not found or sum(size for _, size in found) > len(data) // 2:
        return found
    return None


def _mentions(data: bytes | mmap, prefix: bytes, suffix: str) -> Iterator[str]:
    """Yield the library names in the constants of a library; code and device code have none.

    cuDNN 9 keeps `libcudnn_graph.so` and adds its own major version, the `suffix`, on opening.
    """
    for start, length in sections(data, ".rodata") or [(0, len(data))]:
        at = data.find(prefix, start, start + length)
        while at >= 0:
            found = SONAME.match(data[at : at + 128])
            if found:
                yield found[1].decode() + (found[2].decode() if found[2] else suffix)
            at = data.find(prefix, at + len(prefix), start + length)
