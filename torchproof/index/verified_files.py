"""Files that were hashed once and have not been written to since: they need no second hashing.

A mark beside a file holds what the file system said of it: size, inode, and when content and
inode last changed. The last (`st_ctime_ns`) is the kernel's own and cannot be set back. What a
failing disk does to a file, it does not see.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

State = tuple[int, int, int, int]


def state_of(path: Path) -> State:
    """Return what the file system says of a file; take it before the file is read."""
    found = path.stat()
    return found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def mark(path: Path, state: State) -> None:
    """Note that a file was right while it was in this state. A disk that refuses is not a fault."""
    with contextlib.suppress(OSError):
        _mark_of(path).write_text(_line(state), encoding="ascii")


def is_marked(path: Path) -> bool:
    """Tell whether a file was marked and is in the same state now."""
    try:
        return _mark_of(path).read_text(encoding="ascii") == _line(state_of(path))
    except (OSError, UnicodeDecodeError):
        return False


def _mark_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.checked")


def _line(state: State) -> str:
    return " ".join(map(str, state)) + "\n"
