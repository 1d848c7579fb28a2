"""What is audited → facts. The edge of the audit: engines, layouts, archives, directories."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from torchproof.audit.directory import outside, read_file, walk
from torchproof.audit.facts import Detail, FileEntry, ImageFacts, Subject
from torchproof.errors import InputError


def open_directory(root: Path) -> ImageFacts:
    """Take the facts of an unpacked root or, if it holds `pyvenv.cfg`, of an environment.

    An environment stands at its own path; what it needs from outside is the machine's. Raises
    InputError if there is no such directory.
    """
    if not root.is_dir():
        raise InputError(f"{root} is not a directory", fix="name an image or a directory")
    root = root.resolve()
    environment = (root / "pyvenv.cfg").is_file()
    mount = str(root) if environment else "/"

    @cache
    def detail(entry: FileEntry) -> Detail:
        inside = entry.path.startswith(mount.rstrip("/") + "/")
        below = entry.path[len(mount) :].lstrip("/")
        return read_file(root / below if inside else Path(entry.path), entry)

    return ImageFacts(
        name=str(root),
        subject=Subject.ENVIRONMENT if environment else Subject.ROOT,
        files={entry.path: entry for entry in walk(root, mount)},
        detail=detail,
        outside=outside if environment else None,
    )
