"""An image that is stored somewhere: its configuration, its layers, and the manifest it has there.

The bytes stay as they are stored: a configuration goes out byte by byte as it was tested. Where
images are found is in `open_image`, `saved_archive` and `engine_image`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchproof.errors import CellError, IntegrityError
from torchproof.model.digests import sha256_digest
from torchproof.registry import (
    DOCKER_MANIFEST_LIST,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
)

CHUNK: Final = 1 << 20
"""Bytes of a stored file that are read at a time."""
INDEXES: Final = (OCI_INDEX, DOCKER_MANIFEST_LIST)
"""Media types of a list of manifests, one a platform."""
TESTED: Final = "torchproof.tested"
"""Annotation: digest of the manifest that was tested, where this one only adds annotations."""

Opener = Callable[[], Iterator[bytes]]
"""Starts the bytes of a blob from the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSource:
    """One layer. `open` starts its bytes, as they are stored, from the beginning.

    `descriptor` is None for what an engine saves: a plain tar, or one that its store compressed.
    """

    diff_id: str
    open: Opener
    descriptor: Descriptor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that could be pushed. `manifest` is None where it has none before it is pushed."""

    config: bytes
    layers: tuple[LayerSource, ...]
    manifest: bytes | None = None
    media_type: str = OCI_MANIFEST

    @property
    def config_digest(self) -> str:
        """`sha256:…` of the configuration: the image's id in a Docker Engine."""
        return sha256_digest(self.config)

    @property
    def labels(self) -> dict[str, str]:
        """What the image says of itself."""
        return labels_of(self.config)

    def is_tested(self, digest: str) -> bool:
        """Tell whether a report's digest names this image."""
        return digest in self.names

    @property
    def names(self) -> frozenset[str]:
        """All digests that mean this image: of its configuration, its manifest, and the one that
        was tested before an annotation was added.
        """
        if self.manifest is None:
            return frozenset({self.config_digest})
        annotations = json.loads(self.manifest).get("annotations") or {}
        own = sha256_digest(self.manifest)
        return frozenset({self.config_digest, own, annotations.get(TESTED, own)})


def labels_of(config: bytes) -> dict[str, str]:
    """Return the labels of an image configuration; empty if it has none or is not valid."""
    try:
        labels = (json.loads(config).get("config") or {}).get("Labels") or {}
    except (ValueError, AttributeError):
        return {}
    return {str(name): str(value) for name, value in labels.items()}


def from_manifest(
    data: bytes,
    media_type: str,
    *,
    read: Callable[[str], bytes],
    opener: Callable[[str], Opener],
    where: str,
) -> Image:
    """Make the value of an image from the bytes of its manifest.

    `read` returns a small blob whole, by its digest; `opener` returns what starts a layer's. Raises
    CellError if it is not an image, IntegrityError if manifest and configuration disagree.
    """
    try:
        manifest = json.loads(data)
        config = read(Descriptor.from_json(manifest["config"], where=where).digest)
        layers = [Descriptor.from_json(one, where=where) for one in manifest["layers"]]
        diff_ids = json.loads(config)["rootfs"]["diff_ids"]
    except (ValueError, KeyError, TypeError) as error:
        raise CellError(f"this is not an image: {error!r}", where=where) from error
    if len(diff_ids) != len(layers):
        raise IntegrityError(
            f"{len(layers)} layers, but the configuration names {len(diff_ids)}", where=where
        )
    sources = tuple(
        LayerSource(diff_id=diff_id, open=opener(layer.digest), descriptor=layer)
        for diff_id, layer in zip(diff_ids, layers, strict=True)
    )
    return Image(config=config, layers=sources, manifest=data, media_type=media_type)


def pick_platform(index: dict[str, Any], platform: str = "linux/amd64") -> str | None:
    """Return the digest of an index's only image, or of the first one for a platform.

    What is listed beside images, such as BuildKit's attestations, is of the system `unknown`.
    """
    images = [
        one
        for one in index.get("manifests") or []
        if (one.get("platform") or {}).get("os", "linux") != "unknown"
    ]
    if len(images) == 1:
        return str(images[0]["digest"])
    return next(digests_for(index, platform), None)


def digests_for(index: dict[str, Any], platform: str) -> Iterator[str]:
    """Yield the digests of an index's images that say they are for a platform, in its order.

    A variant of the platform's machine (`linux/arm64/v8`) is not compared.
    """
    system, _, machine = platform.partition("/")
    wanted = (system, machine.partition("/")[0])
    for one in index.get("manifests") or ():
        said = one.get("platform") or {}
        if (said.get("os"), said.get("architecture")) == wanted:
            yield str(one["digest"])


def file_chunks(path: Path, offset: int = 0, size: int | None = None) -> Iterator[bytes]:
    """Yield a file, or `size` bytes of it from `offset`, in pieces."""
    left = path.stat().st_size - offset if size is None else size
    with path.open("rb") as file:
        file.seek(offset)
        while left and (chunk := file.read(min(CHUNK, left))):
            left -= len(chunk)
            yield chunk
