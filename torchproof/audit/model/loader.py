"""The dynamic loader's search, on facts: which file a library name would be loaded from. Pure.

Follows ld.so(8) of glibc: already loaded, DT_RPATH of the object and of what loaded it (where there
is no DT_RUNPATH), LD_LIBRARY_PATH, DT_RUNPATH, the directories of ld.so.conf in order, the default
directories; in each one the hardware-specific subdirectories first.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from torchproof.audit.facts import ImageFacts
from torchproof.audit.reading.elf_facts import ElfFacts

DRIVER_LIBRARIES: Final = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-opencl.so.1",
    "libnvcuvid.so.1",
    "libnvidia-encode.so.1",
    "libnvoptix.so.1",
    "libGLX_nvidia.so.0",
)
"""Come from the host's driver when a container starts; an image need not have them."""
TRIPLES: Final = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
HARDWARE: Final = {
    "x86_64": ("glibc-hwcaps/x86-64-v4", "glibc-hwcaps/x86-64-v3", "glibc-hwcaps/x86-64-v2"),
    "aarch64": ("atomics",),
}
MAX_INCLUDES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One object of a process: where it was found, and which object needs it."""

    path: str
    elf: ElfFacts
    loader: Loaded | None = None
    via: str = ""
    """How it was found: `RPATH`, `LD_LIBRARY_PATH`, `RUNPATH`, `ld.so.conf`, `default`, `torch`."""


@dataclass(slots=True)
class Process:
    """What would be mapped together: sonames and file names → objects, and what was not found."""

    by_name: dict[str, Loaded] = field(default_factory=dict)
    objects: dict[str, Loaded] = field(default_factory=dict)
    missing: list[tuple[Loaded, str]] = field(default_factory=list)

    def add(self, found: Loaded, name: str = "") -> None:
        """Map an object; a name that is taken stays with the object that took it first."""
        self.objects[found.path] = found
        for key in (name, found.elf.soname, posixpath.basename(found.path)):
            if key:
                self.by_name.setdefault(key, found)


class Loader:
    """The loader of one image. Looks a name up as ld.so of that image would."""

    def __init__(self, facts: ImageFacts, *, library_path: tuple[str, ...] | None = None) -> None:
        self.facts = facts
        self.library_path = _library_path(facts) if library_path is None else library_path
        self._found: dict[tuple[str, str, str], str | None] = {}

    @cached_property
    def configured(self) -> tuple[str, ...]:
        """Directories of ld.so.conf, includes in the order of their names."""
        return tuple(dict.fromkeys(path for path, _ in conf_directories(self.facts)))

    def load(self, root: str, main: str | None = None, known: Process | None = None) -> Process:
        """Return what would be mapped if a process (`main`, or the file itself) loaded a file.

        `known` are the objects of a process that has run before (an imported torch): they stand in
        for what is not found otherwise.
        """
        process = Process()
        elf = self.elf(root)
        if elf is None:
            return process
        top: Loaded | None = None
        todo: list[Loaded] = []
        program = self.elf(main) if main else None
        if main and program:
            top = Loaded(path=main, elf=program)
            process.add(top)
            todo.append(top)
        start = Loaded(path=root, elf=elf, loader=top)
        process.add(start)
        todo.append(start)
        while todo:
            asking = todo.pop(0)
            for name in asking.elf.needed:
                if name in process.by_name:
                    continue
                found = self.find(name, asking)
                if found is None and known is not None:
                    found = known.by_name.get(name)
                if found is None:
                    process.missing.append((asking, name))
                elif found.path not in process.objects:
                    process.add(found, name)
                    todo.append(found)
                else:
                    process.by_name[name] = process.objects[found.path]
        return process

    def elf(self, path: str) -> ElfFacts | None:
        """Return what was read of the ELF file that a path leads to."""
        return self.facts.read(path).elf

    def find(self, name: str, asking: Loaded) -> Loaded | None:
        """Return the file that a NEEDED name of an object would be loaded from; None if none."""
        if "/" in name:
            found = self._accept(name, asking.elf)
            return Loaded(path=found, elf=self._elf(found), loader=asking) if found else None
        for via, folder in self._search(asking):
            found = self._in(folder, name, asking.elf)
            if found:
                return Loaded(path=found, elf=self._elf(found), loader=asking, via=via)
        return None

    def _elf(self, path: str) -> ElfFacts:
        elf = self.elf(path)
        assert elf is not None
        return elf

    def _search(self, asking: Loaded) -> Iterator[tuple[str, str]]:
        if not asking.elf.runpath:
            at: Loaded | None = asking
            while at is not None:
                if not at.elf.runpath:
                    for folder in at.elf.rpath:
                        yield "RPATH", expand(folder, at)
                at = at.loader
        for folder in self.library_path:
            yield "LD_LIBRARY_PATH", expand(folder, asking)
        for folder in asking.elf.runpath:
            yield "RUNPATH", expand(folder, asking)
        for folder in self.configured:
            yield "ld.so.conf", folder
        for folder in default_directories(asking.elf):
            yield "default", folder

    def _in(self, folder: str, name: str, asking: ElfFacts) -> str | None:
        key = (folder, name, asking.machine)
        if key not in self._found:
            places = (*HARDWARE.get(asking.machine, ()), "")
            candidates = (posixpath.join(folder, place, name) for place in places)
            self._found[key] = next(
                (found for path in candidates if (found := self._accept(path, asking))), None
            )
        return self._found[key]

    def _accept(self, path: str, asking: ElfFacts) -> str | None:
        resolved = self.facts.resolve(path)
        if resolved is None:
            return None
        elf = self.elf(resolved)
        fits = elf is not None and (elf.machine, elf.bits) == (asking.machine, asking.bits)
        return resolved if fits else None


def _library_path(facts: ImageFacts) -> tuple[str, ...]:
    """Return the directories of LD_LIBRARY_PATH as the image's ENV sets it."""
    value = facts.env.get("LD_LIBRARY_PATH", "")
    return tuple(part for part in value.replace(";", ":").split(":") if part)


def expand(folder: str, owner: Loaded) -> str:
    """Expand `$ORIGIN`, `$LIB` and `$PLATFORM` of a search path for the object that carries it."""
    origin = posixpath.dirname(owner.path)
    lib = "lib64" if owner.elf.bits == 64 else "lib"
    for name, value in (("ORIGIN", origin), ("LIB", lib), ("PLATFORM", owner.elf.machine)):
        folder = folder.replace(f"${{{name}}}", value).replace(f"${name}", value)
    return posixpath.normpath(folder)


def default_directories(elf: ElfFacts) -> tuple[str, ...]:
    """Return the loader's built-in directories, Debian's multiarch ones included."""
    triple = TRIPLES.get(elf.machine)
    multiarch = (f"/lib/{triple}", f"/usr/lib/{triple}") if triple else ()
    wide = ("/lib64", "/usr/lib64") if elf.bits == 64 else ()
    return (*multiarch, *wide, "/lib", "/usr/lib")


def conf_directories(facts: ImageFacts) -> Iterator[tuple[str, str]]:
    """Yield (directory, file that names it) of /etc/ld.so.conf in the order of ldconfig."""
    todo = ["/etc/ld.so.conf"]
    seen: set[str] = set()
    while todo and len(seen) < MAX_INCLUDES:
        path = todo.pop(0)
        if path in seen:
            continue
        seen.add(path)
        included: list[str] = []
        for line in (facts.text(path) or "").splitlines():
            words = line.partition("#")[0].split()
            if words[:1] == ["include"]:
                included += [found for word in words[1:] for found in _matching(facts, path, word)]
            elif words and words[0] != "hwcap":
                yield words[0].partition("=")[0].rstrip("/"), path
        todo = included + todo


def _matching(facts: ImageFacts, path: str, pattern: str) -> Iterable[str]:
    pattern = posixpath.join(posixpath.dirname(path), pattern)
    folder, name = posixpath.split(pattern)
    return (
        posixpath.join(folder, found)
        for found in facts.listdir(folder)
        if fnmatch.fnmatchcase(found, name)
    )


def owners(facts: ImageFacts) -> Mapping[str, str]:
    """Return for each file that a distribution records: `name version`."""
    return {
        file.path: f"{dist.name} {dist.version}"
        for dist in facts.distributions
        for file in dist.files
    }
