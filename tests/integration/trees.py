"""File trees of images, to be compared: path → what it is, down to the content's hash."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from collections.abc import Iterator
from itertools import chain
from typing import IO, NamedTuple, cast

from torchproof.assemble.destination import OpenSource
from torchproof.image.compression import decompressed
from torchproof.image.layer_tar import LARGEST_LAYER, ChunkReader

CHUNK = 1 << 20


class Node(NamedTuple):
    kind: str
    mode: int
    uid: int
    gid: int
    target: str
    content: str


Tree = dict[str, Node]


def add(tree: Tree, archive: tarfile.TarFile) -> None:
    """Lay one tar over a tree; whiteouts remove."""
    for info in archive:
        path = info.name.lstrip("./")
        folder, _, leaf = path.rpartition("/")
        if leaf.startswith(".wh."):
            gone = f"{folder}/{leaf.removeprefix('.wh.')}"
            for name in [name for name in tree if name == gone or name.startswith(f"{gone}/")]:
                del tree[name]
            continue
        if not path:
            continue
        content = ""
        if info.islnk():
            tree[path] = tree[info.linkname.lstrip("./")]
            continue
        if info.isreg():
            file = cast("IO[bytes]", archive.extractfile(info))
            hasher = hashlib.sha256()
            while chunk := file.read(CHUNK):
                hasher.update(chunk)
            content = hasher.hexdigest()
        kind = "d" if info.isdir() else "l" if info.issym() else "f" if info.isreg() else "?"
        mode = 0 if info.issym() else info.mode & 0o7777
        tree[path] = Node(kind, mode, info.uid, info.gid, info.linkname, content)


class TreeDestination:
    """Takes an image and keeps only what its files are. Nothing is written to disk."""

    ref = "tree"
    written_bytes = 0

    def __init__(self) -> None:
        self.layers: dict[str, Tree] = {}
        self.tree: Tree = {}

    def current(self) -> str | None:
        return None

    def has(self, digest: str, size: int) -> bool:
        return False

    def stop(self) -> None:
        pass

    def write(
        self, source: OpenSource, *, digest: str | None = None, size: int | None = None
    ) -> tuple[str, int]:
        hasher, count = hashlib.sha256(), 0

        def watched() -> Iterator[bytes]:
            nonlocal count
            for chunk in source():
                hasher.update(chunk)
                count += len(chunk)
                yield chunk

        layer: Tree = {}
        chunks = watched()
        first = next(chunks, b"")
        if first[:2] == b"\x1f\x8b":
            plain = ChunkReader(decompressed(chain((first,), chunks)), largest=LARGEST_LAYER)
            with tarfile.open(fileobj=plain, mode="r|") as archive:
                add(layer, archive)
        for _ in chunks:
            pass
        found = f"sha256:{hasher.hexdigest()}"
        self.layers[found] = layer
        return found, count

    def finish(self, manifest: bytes, config_digest: str, layers: tuple[str, ...]) -> str:
        for digest in layers:
            self.tree |= self.layers[digest]
        return f"sha256:{hashlib.sha256(manifest).hexdigest()}"


def docker_tree(image: str) -> Tree:
    """Read the tree of an image of the Docker Engine (`docker export` of a container)."""
    created = subprocess.run(
        ["docker", "create", image], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        tree: Tree = {}
        with (
            subprocess.Popen(["docker", "export", created], stdout=subprocess.PIPE) as export,
            tarfile.open(fileobj=export.stdout, mode="r|") as archive,
        ):
            add(tree, archive)
        return tree
    finally:
        subprocess.run(["docker", "rm", created], capture_output=True, check=False)
