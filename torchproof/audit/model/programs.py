"""How a program is found and who may run it: PATH, shebangs, users, permissions. For rules."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchproof.audit.facts import MAX_LINKS, FileEntry, FileKind, ImageFacts

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH that an engine sets where the image sets none (moby, oci/defaults)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who a process runs as. `home` is what /etc/passwd says, "" without a line there."""

    uid: int
    gids: tuple[int, ...]
    name: str = ""
    home: str = ""

    def may(self, entry: FileEntry, bit: int) -> bool:
        """Tell whether the permission bits give read (4), write (2) or execute (1)."""
        if self.uid == 0:
            return bit != 1 or entry.kind is FileKind.DIRECTORY or bool(entry.mode & 0o111)
        if entry.uid == self.uid:
            return bool(entry.mode >> 6 & bit)
        if entry.gid in self.gids:
            return bool(entry.mode >> 3 & bit)
        return bool(entry.mode & bit)


RANDOM = User(uid=1000700000, gids=(0,))
"""A user of OpenShift: any uid, group 0, no line in /etc/passwd."""


def search_path(facts: ImageFacts) -> list[str]:
    """Return the folders of PATH in order."""
    return [folder for folder in facts.env.get("PATH", DEFAULT_PATH).split(":") if folder]


def which(facts: ImageFacts, name: str) -> str | None:
    """Return the path of a program as a shell finds it; None if PATH does not have it."""
    candidates = [name] if "/" in name else [f"{folder}/{name}" for folder in search_path(facts)]
    for path in candidates:
        entry = facts.lookup(path)
        if entry is not None and entry.kind is FileKind.FILE and entry.mode & 0o111:
            return posixpath.normpath(path)
    return None


def shebang(text: str | None) -> list[str]:
    """Return the words behind `#!`; empty for what has none. A carriage return stays."""
    if not text or not text.startswith("#!"):
        return []
    return text[2:].split("\n", maxsplit=1)[0].strip(" \t").split(" ")


def interpreter_of(facts: ImageFacts, script: str) -> tuple[str, str | None]:
    """Return (as written, path) of a script's interpreter; the path is None if it does not resolve.

    `#!/usr/bin/env python` is looked up by PATH; ("", None) for anything else.
    """
    words = shebang(facts.text(script))
    if not words:
        return "", None
    if posixpath.basename(words[0]) == "env":
        names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return " ".join(words), which(facts, names[0]) if names else None
    return words[0], which(facts, words[0]) if words[0].startswith("/") else None


def way(facts: ImageFacts, path: str) -> Iterator[FileEntry]:
    """Yield every directory that is walked through to reach a path, links followed."""
    links, done = 0, "/"
    todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    while todo and links <= MAX_LINKS:
        part = todo.pop()
        if part == "..":
            done = posixpath.dirname(done)
            continue
        entry = facts.entry(posixpath.join(done, part))
        if entry is None:
            return
        if entry.kind is FileKind.LINK:
            links += 1
            done = "/" if entry.target.startswith("/") else done
            todo += [name for name in reversed(entry.target.split("/")) if name not in ("", ".")]
            continue
        done = entry.path
        if entry.kind is FileKind.DIRECTORY:
            yield entry


def closed_to(facts: ImageFacts, path: str, user: User) -> FileEntry | None:
    """Return the first directory on the way to a path that a user may not enter."""
    folders = [*way(facts, posixpath.dirname(path)), *way(facts, path)]
    return next((folder for folder in folders if not user.may(folder, 1)), None)


def passwd(facts: ImageFacts) -> Mapping[str, tuple[int, int, str]]:
    """Return name → (uid, gid, home) of /etc/passwd."""
    found = {}
    for line in (facts.text("/etc/passwd") or "").splitlines():
        parts = line.split(":")
        if len(parts) >= 6 and parts[2].isdigit() and parts[3].isdigit():
            found[parts[0]] = (int(parts[2]), int(parts[3]), parts[5])
    return found


def image_user(facts: ImageFacts) -> User | None:
    """Return the user that the image declares; None for a name that /etc/passwd does not have."""
    written = facts.config.user if facts.config else ""
    name, _, group = written.partition(":")
    known = passwd(facts)
    if not name or name in ("0", "root"):
        return User(uid=0, gids=(0,), name="root", home="/root")
    if name.isdigit():
        line = next((item for item in known.items() if item[1][0] == int(name)), None)
        gid = int(group) if group.isdigit() else (line[1][1] if line else 0)
        return User(
            uid=int(name),
            gids=(gid,),
            name=line[0] if line else "",
            home=line[1][2] if line else "",
        )
    if name not in known:
        return None
    uid, gid, home = known[name]
    return User(uid=uid, gids=(int(group) if group.isdigit() else gid,), name=name, home=home)


def prefix_of(site: str) -> str:
    """Return a site directory's prefix: `/opt/venv/lib/python3.11/site-packages` → `/opt/venv`."""
    return re.sub(r"/lib(64)?/python[\d.]*t?/(site|dist)-packages$", "", site) or "/"
