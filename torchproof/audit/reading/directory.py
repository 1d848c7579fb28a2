"""Files of a directory of this machine: an unpacked root, an environment, a layer's files."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from torchproof.audit.facts import NOTHING, Detail, FileEntry, FileKind
from torchproof.audit.reading.file_detail import inspect, wanted


def walk(root: Path, mount: str = "/", layer: int = 0) -> Iterator[FileEntry]:
    """Yield every path below a directory, as if it were mounted at `mount`; links are not followed.

    What may not be read is left out; names that are not UTF-8 keep their surrogates.
    """
    todo = [(root, mount.rstrip("/"))]
    while todo:
        folder, prefix = todo.pop()
        try:
            names = sorted(os.scandir(folder), key=lambda item: item.name)
        except (PermissionError, FileNotFoundError):
            continue
        for item in names:
            found = entry_of(Path(item.path), f"{prefix}/{item.name}", layer)
            if found is None:
                continue
            yield found
            if found.kind is FileKind.DIRECTORY:
                todo.append((Path(item.path), found.path))


def entry_of(place: Path, path: str, layer: int = 0) -> FileEntry | None:
    """Describe one path of this machine under another name; None if it is gone."""
    try:
        status = place.lstat()
        target = str(place.readlink()) if stat.S_ISLNK(status.st_mode) else ""
    except OSError:
        return None
    return FileEntry(
        path=path,
        kind=_kind(status.st_mode),
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        size=status.st_size if stat.S_ISREG(status.st_mode) else 0,
        target=target,
        inode=f"{status.st_dev}:{status.st_ino}" if status.st_nlink > 1 else "",
        layer=layer,
    )


def outside(path: str) -> FileEntry | None:
    """Look up a path of this machine, for an environment that is built on it."""
    return entry_of(Path(path), path)


def read_file(place: Path, entry: FileEntry) -> Detail:
    """Read what rules may know of one regular file. Never follows a link, never waits on a pipe."""
    if not wanted(entry):
        return NOTHING
    try:
        handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return Detail(broken=f"cannot be read: {error.strerror}")
    try:
        if not os.fstat(handle).st_size:
            return inspect(entry, b"")
        with mmap.mmap(handle, 0, access=mmap.ACCESS_READ) as data:
            return inspect(entry, data)
    except (OSError, ValueError) as error:
        return Detail(broken=f"cannot be read: {error}")
    finally:
        os.close(handle)


def _kind(mode: int) -> FileKind:
    if stat.S_ISREG(mode):
        return FileKind.FILE
    if stat.S_ISDIR(mode):
        return FileKind.DIRECTORY
    return FileKind.LINK if stat.S_ISLNK(mode) else FileKind.OTHER
