"""`images/<cell>/` on disk: written from locks, and compared with them.

Only `Dockerfile` and the `.txt` files are ours; a reader's own notes beside them are left alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torchproof.image.dockerfile import render
from torchproof.model.lock import Lock
from torchproof.model.lock_file import IMAGES

TEMPLATES = "templates"
"""The one folder of images/ that is not a cell's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A generated file that is not what its lock gives; None is a file that is not there."""

    path: Path
    present: str | None
    wanted: str | None

    @property
    def diff(self) -> str:
        """The difference as a unified diff, from what is there to what should be."""
        lines = difflib.unified_diff(
            (self.present or "").splitlines(keepends=True),
            (self.wanted or "").splitlines(keepends=True),
            str(self.path) if self.present is not None else "/dev/null",
            str(self.path) if self.wanted is not None else "/dev/null",
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def changes(lock: Lock, images: Path = IMAGES) -> tuple[Change, ...]:
    """Compare the files of a cell with what its lock gives; touches nothing.

    Raises InputError for a lock that gives no Dockerfile.
    """
    folder = images / lock.cell
    # A Dockerfile cannot make a slim image: it is assembled, from its lock alone.
    wanted = {} if lock.gpus else dict(render(lock))
    names = {path.name for path in _generated(folder)} | set(wanted)
    found = (
        Change(path=folder / name, present=_read(folder / name), wanted=wanted.get(name))
        for name in sorted(names)
    )
    return tuple(change for change in found if change.present != change.wanted)


def write_files(lock: Lock, images: Path = IMAGES) -> tuple[Change, ...]:
    """Bring the files of a cell to what its lock gives; return what was changed."""
    made = changes(lock, images)
    for change in made:
        if change.wanted is None:
            change.path.unlink()
            continue
        change.path.parent.mkdir(parents=True, exist_ok=True)
        change.path.write_text(change.wanted, encoding="utf-8")
    return made


def stale_folders(cells: Iterable[str], images: Path = IMAGES) -> tuple[Path, ...]:
    """Return the folders of cells that the matrix no longer has."""
    known = {*cells, TEMPLATES}
    folders = sorted(path for path in images.glob("*/") if path.name not in known)
    return tuple(path for path in folders if (path / "lock.yaml").exists() or [*_generated(path)])


def _generated(folder: Path) -> Iterator[Path]:
    yield from folder.glob("*.txt")
    yield from folder.glob("Dockerfile")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
