"""Where an image is: an OCI layout, a registry, an engine. All give the same value.

An edge. Nothing is built here, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from torchproof.errors import CellError, IntegrityError
from torchproof.image.stored_image import (
    INDEXES,
    Image,
    Opener,
    file_chunks,
    from_manifest,
    pick_platform,
)
from torchproof.model.digests import sha256_digest
from torchproof.registry import OCI_MANIFEST, Manifest, Reference, Registry


@contextmanager
def find_image(ref: str, digest: str, scratch: Path) -> Iterator[Image]:
    """Open the image that a report names by `ref` and `digest`, wherever it is.

    `scratch` takes what an engine saves. Raises `CellError` when the image no longer exists, or is
    another one now.
    """
    layout = Path(ref)
    if (layout / "oci-layout").is_file():
        yield from_layout(layout, digest)
        return
    remote = _remote(ref)
    if remote is not None:
        with Registry(remote.registry) as registry:
            found = from_registry(registry, remote.repository, digest)
            if found is not None:
                yield found
                return
    # Docker's client takes long to import.
    from torchproof.image.engine_image import tested_image  # noqa: PLC0415

    with tested_image(digest, scratch) as image:
        yield image


def _remote(ref: str) -> Reference | None:
    """Read a reference to an image in a registry: one that has a digest."""
    host, _, rest = ref.partition("/")
    if "@sha256:" not in ref or not rest or not ("." in host or ":" in host or host == "localhost"):
        return None
    return Reference.parse(ref)


def from_registry(registry: Registry, repository: str, target: str) -> Image | None:
    """Read an image of a registry by tag or digest; None if it is not there.

    An index stands for its only image, or for the one of linux/amd64.
    """
    found = registry.manifest(repository, target)
    if found is not None and found.media_type in INDEXES:
        chosen = pick_platform(found.json())
        found = registry.manifest(repository, chosen) if chosen else None
    if found is None:
        return None
    return read_image(registry, repository, found, where=f"{repository}@{target}")


def read_image(registry: Registry, repository: str, manifest: Manifest, *, where: str) -> Image:
    """Read the image of a manifest: its configuration now, its layers when they are opened.

    Raises CellError if the manifest is not an image's, IntegrityError if it and the configuration
    disagree.
    """

    def read(digest: str) -> bytes:
        return b"".join(registry.read_blob(repository, digest))

    def opener(digest: str) -> Opener:
        return partial(registry.read_blob, repository, digest)

    return from_manifest(manifest.data, manifest.media_type, read=read, opener=opener, where=where)


def from_layout(layout: Path, digest: str) -> Image:
    """Read an image of an OCI layout by its manifest's digest.

    Raises CellError if the layout does not have it, IntegrityError if its manifest or its
    configuration was altered.
    """
    blobs = layout / "blobs/sha256"

    def path(name: str) -> Path:
        return blobs / name.removeprefix("sha256:")

    def read(name: str) -> bytes:
        try:
            data = path(name).read_bytes()
        except OSError as error:
            raise CellError(
                f"the layout lacks {name}", where=str(layout), fix="run the matrix again"
            ) from error
        if sha256_digest(data) != name:
            raise IntegrityError(f"{name} of the layout is not what it was", where=str(layout))
        return data

    def opener(name: str) -> Opener:
        return partial(file_chunks, path(name))

    return from_manifest(read(digest), OCI_MANIFEST, read=read, opener=opener, where=str(layout))
