"""An install: what a command or file asks an installer for, and from which indexes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torchproof.audit.parsing.texts import ShellUse

TORCH_FAMILY = frozenset({"torch", "torchvision", "torchaudio"})


@dataclass(frozen=True, kw_only=True)
class Install:
    """One install: by which `tool` (`pip`, `uv`, `conda`, `apt`), of what, from which indexes.

    `requirements` are as written with variables filled in; `files` and `constraints` are names of
    files; `use` is the command (None for a requirements file); `options` all options as written.
    """

    tool: str
    verb: str
    path: str
    line: int
    requirements: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    index: str = ""
    index_written: str = ""
    extra: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    use: ShellUse | None = None

    @property
    def where(self) -> str:
        """`file:line`."""
        return f"{self.path}:{self.line}"

    def has(self, *names: str) -> bool:
        """Tell whether an option is given, with a value or without."""
        return any(option.partition("=")[0] in names for option in self.options)

    def parsed(self) -> Iterator[Requirement]:
        """Yield the requirements that can be read."""
        for text in self.requirements:
            found = requirement(text)
            if found is not None:
                yield found

    def torch_family(self) -> tuple[Requirement, ...]:
        """Return the requirements of torch, torchvision and torchaudio."""
        return tuple(item for item in self.parsed() if canonicalize_name(item.name) in TORCH_FAMILY)

    @property
    def indexes(self) -> tuple[str, ...]:
        """Every index, the main one first."""
        return (*([self.index] if self.index else ()), *self.extra)


def requirement(text: str) -> Requirement | None:
    """Read one requirement; None for a path, a URL or something with variables left in it."""
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None
