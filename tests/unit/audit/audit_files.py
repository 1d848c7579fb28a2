"""Small images in memory for the tests of rules: a mapping of paths to contents becomes facts."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from torchproof.audit.catalogue import RULES
from torchproof.audit.facts import Detail, FileEntry, FileKind, ImageFacts, RunConfig
from torchproof.audit.reading.elf_facts import ElfFacts
from torchproof.model.results import Finding

SITE = "/opt/venv/lib/python3.11/site-packages"


class Link(str):
    """Content that stands for a symbolic link: its target."""


Content = str | ElfFacts | Detail | Link | None
"""Text of a file, what was read of an ELF file, a link; None is a directory."""


def facts_of(
    files: Mapping[str, Content],
    *,
    env: Mapping[str, str] | None = None,
    modes: Mapping[str, int] | None = None,
    owners: Mapping[str, tuple[int, int]] | None = None,
    config: RunConfig | None = None,
    **more: Any,
) -> ImageFacts:
    """Make facts of an image. Parents of a path are made as directories of mode 755."""
    entries: dict[str, FileEntry] = {}
    details: dict[str, Detail] = {}
    for path, content in files.items():
        parent = posixpath.dirname(path)
        while parent != "/":
            entries.setdefault(parent, FileEntry(path=parent, kind=FileKind.DIRECTORY, mode=0o755))
            parent = posixpath.dirname(parent)
        kind, mode = FileKind.FILE, 0o644
        if content is None:
            kind, mode = FileKind.DIRECTORY, 0o755
        elif isinstance(content, Link):
            kind, mode = FileKind.LINK, 0o777
        elif "/bin/" in path or isinstance(content, ElfFacts):
            mode = 0o755
        match content:
            case Link() | None:
                pass
            case str():
                details[path] = Detail(text=content)
            case ElfFacts():
                details[path] = Detail(elf=content)
            case Detail():
                details[path] = content
        uid, gid = (owners or {}).get(path, (0, 0))
        entries[path] = FileEntry(
            path=path,
            kind=kind,
            mode=(modes or {}).get(path, mode),
            uid=uid,
            gid=gid,
            size=len(content) if isinstance(content, str) else 1,
            target=str(content) if isinstance(content, Link) else "",
        )
    return ImageFacts(
        name="test",
        files=entries,
        detail=lambda entry: details.get(entry.path, Detail()),
        config=config or RunConfig(env=dict(env or {})),
        **more,
    )


def wheel(
    name: str,
    version: str,
    *,
    requires: tuple[str, ...] = (),
    files: tuple[str, ...] = (),
    site: str = SITE,
    tag: str = "py3-none-any",
) -> dict[str, Content]:
    """Return the `.dist-info` of an installed distribution; `files` are relative to its site."""
    info = f"{site}/{name.replace('-', '_')}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    return {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}\n",
        f"{info}/RECORD": "".join(f"{path},,\n" for path in files),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n",
        f"{info}/INSTALLER": "uv\n",
    }


def findings(rule: str, facts: ImageFacts) -> list[Finding]:
    """Return what one rule (by id) finds."""
    chosen = next(found for found in RULES if found.id == rule)
    return list(chosen.evaluate(chosen, facts))
