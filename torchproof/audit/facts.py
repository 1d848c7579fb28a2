"""Facts about an image: what the rules look at. Pure values, which `audit.reading` makes.

Paths are absolute inside the image, normalised, without a trailing slash ("/opt/venv/bin/python").
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from torchproof.audit.model.distributions import Distribution, find_distributions
from torchproof.model.declared_host import DeclaredHost
from torchproof.model.platforms import AMD64, find_platform

if TYPE_CHECKING:
    from torchproof.audit.reading.elf_facts import ElfFacts
    from torchproof.model.cell import Cell
    from torchproof.model.lock import Lock
    from torchproof.model.results import Finding

T = TypeVar("T")

MAX_LINKS = 40
"""Symbolic links followed for one path before it counts as a loop; the kernel's own limit."""


class FileKind(StrEnum):
    """What a path is."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One path of the image. `mode` holds the permission bits, `size` is bytes.

    `inode` is equal for hard links of one file inside one layer ("" if unknown); `layer` counts
    from the bottom.
    """

    path: str
    kind: FileKind = FileKind.FILE
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    size: int = 0
    target: str = ""
    inode: str = ""
    layer: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What was read from one regular file.

    `text` is kept for files that `file_detail.keeps_text` names, cut at its limit. `archs` are the
    architectures with device code ("sm_90", "compute_90" for PTX); `emptied` is true if there was
    such code and all of it is zeros. `broken` says why the file cannot be read as what its name or
    its first bytes say it is ("is empty").
    """

    text: str | None = None
    elf: ElfFacts | None = None
    archs: tuple[str, ...] = ()
    emptied: bool = False
    broken: str = ""


NOTHING = Detail()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """How an image is started: the part of its configuration that rules look at."""

    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = "/"
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    platform: str = AMD64
    digest: str = ""

    @property
    def machine(self) -> str | None:
        """`x86_64`; None for a platform that cells cannot have."""
        found = find_platform(self.platform)
        return found.machine if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLayerFacts:
    """One layer: `digest` of its tar (diff_id), `size` in bytes unpacked, `packed` compressed or 0.

    `created_by` is the step that made it, as the image's history says.
    """

    digest: str
    size: int
    packed: int = 0
    created_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """A file outside the image that belongs to it: a Dockerfile, a compose file, a job script."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedSize:
    """What an earlier report says about the same cell, in bytes."""

    size: int
    source: str
    now: int = 0
    """Size now, measured as `size` was; 0: as the layers unpack."""


class Subject(StrEnum):
    """What is audited."""

    IMAGE = "image"
    ROOT = "root"
    """An unpacked root file system."""
    ENVIRONMENT = "environment"
    """A virtual environment; everything outside it belongs to the host."""
    WHEELS = "wheels"
    """The wheels of a lock, laid out as they would be installed; no operating system below."""
    TEXTS = "texts"
    """Dockerfiles and launch files alone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFacts:
    """Everything that rules may look at. Equal facts give equal findings.

    `detail` answers what was read from a file; it is called for regular files only. `outside` looks
    up a path of the host that an environment is built on (None: there is nothing outside).
    `problems` are findings made while reading (a truncated layer, a path that climbs out).
    """

    name: str
    subject: Subject = Subject.ROOT
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    detail: Callable[[FileEntry], Detail] = lambda entry: NOTHING
    outside: Callable[[str], FileEntry | None] | None = None
    config: RunConfig | None = None
    layers: tuple[ImageLayerFacts, ...] = ()
    lock: Lock | None = None
    cell: Cell | None = None
    hosts: tuple[DeclaredHost, ...] = ()
    texts: tuple[TextFile, ...] = ()
    before: ReportedSize | None = None
    problems: tuple[Finding, ...] = ()

    @property
    def env(self) -> Mapping[str, str]:
        """The environment variables that the image sets."""
        return self.config.env if self.config else {}

    def entry(self, path: str) -> FileEntry | None:
        """Return the entry at a path, without following a link at its end."""
        found = self.files.get(path)
        if found is None and self.outside is not None:
            return self.outside(path)
        return found

    def resolve(self, path: str) -> str | None:
        """Follow all links of a path inside the root, as the kernel does; None if nothing is there.

        A link that climbs above the root stays at the root; a loop leads nowhere.
        """
        links = 0
        done = "/"
        todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        while todo:
            part = todo.pop()
            if part == "..":
                done = posixpath.dirname(done)
                continue
            step = posixpath.join(done, part)
            entry = self.entry(step)
            if entry is None:
                return None
            if entry.kind is not FileKind.LINK:
                done = step
                continue
            links += 1
            if links > MAX_LINKS:
                return None
            if entry.target.startswith("/"):
                done = "/"
            todo += [name for name in reversed(entry.target.split("/")) if name not in ("", ".")]
        return done

    def lookup(self, path: str) -> FileEntry | None:
        """Return the entry that a path leads to, links followed; None if there is none."""
        resolved = self.resolve(path)
        if resolved is None:
            return None
        return self.entry(resolved) or (
            FileEntry(path="/", kind=FileKind.DIRECTORY, mode=0o755) if resolved == "/" else None
        )

    def read(self, path: str) -> Detail:
        """Return what was read from the file a path leads to; `NOTHING` if it is not a file."""
        entry = self.lookup(path)
        return self.detail(entry) if entry and entry.kind is FileKind.FILE else NOTHING

    def text(self, path: str) -> str | None:
        """Return the text of a small file; None if there is none or it is not kept."""
        return self.read(path).text

    @cached_property
    def children(self) -> Mapping[str, tuple[str, ...]]:
        """Names in each directory of the image, sorted."""
        names: dict[str, list[str]] = {}
        for path in self.files:
            parent, name = posixpath.split(path)
            if name:
                names.setdefault(parent, []).append(name)
        return {parent: tuple(sorted(found)) for parent, found in names.items()}

    def listdir(self, path: str) -> tuple[str, ...]:
        """Return the names in the directory that a path leads to; empty if it is not one."""
        resolved = self.resolve(path)
        return self.children.get(resolved, ()) if resolved else ()

    def regular(self, names: Callable[[str], bool] = lambda name: True) -> Iterator[FileEntry]:
        """Yield the regular files whose base name is accepted."""
        for path, entry in self.files.items():
            if entry.kind is FileKind.FILE and names(posixpath.basename(path)):
                yield entry

    @cached_property
    def elves(self) -> Mapping[str, ElfFacts]:
        """Every ELF file of the image by path; broken files are left out."""
        found = {}
        for entry in self.regular():
            elf = self.detail(entry).elf
            if elf is not None:
                found[entry.path] = elf
        return found

    @cached_property
    def distributions(self) -> tuple[Distribution, ...]:
        """Installed Python distributions, sorted by (site directory, name)."""
        return find_distributions(self)

    def installed(self, name: str) -> tuple[Distribution, ...]:
        """Return the installed distributions of a normalised name; empty if there is none."""
        return tuple(found for found in self.distributions if found.name == name)

    def derived(self, make: Callable[[ImageFacts], T]) -> T:
        """Return `make(self)`, computed once: for what several rules need."""
        if make not in self._derived:
            self._derived[make] = make(self)
        found: T = self._derived[make]
        return found

    @cached_property
    def _derived(self) -> dict[Callable[[ImageFacts], Any], Any]:
        return {}

    @cached_property
    def torch(self) -> Distribution | None:
        """The installed torch; the first one if there are several."""
        return next(iter(self.installed("torch")), None)

    @cached_property
    def cuda(self) -> str | None:
        """The CUDA of torch as wheels name it ("cu126", "cpu"), from the files; None without torch.

        Read from `torch/version.py`; without it, from the local version or from the nvidia wheels.
        """
        return self.torch.cuda if self.torch else None
