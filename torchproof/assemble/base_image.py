"""The base of an assembled image: layers that exist, its configuration, and a few files of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock
from isal import isal_zlib

from torchproof.assemble.destination import OpenSource
from torchproof.assemble.layer_facts import FactsStore, LayerFacts, recipe_key
from torchproof.assemble.layout_destination import file_chunks
from torchproof.errors import CellError, HostError
from torchproof.image.compression import Compression, compression_of
from torchproof.image.layer_tar import LayerTar, Member, OpaqueDirectory, Removed
from torchproof.image.open_image import read_image
from torchproof.image.stored_image import INDEXES, LayerSource, digests_for
from torchproof.registry import (
    OCI_LAYER_GZIP,
    Descriptor,
    Manifest,
    Reference,
    Registry,
)

_MEDIA_TYPES = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": OCI_LAYER_GZIP,
    "application/vnd.docker.image.rootfs.diff.tar": "application/vnd.oci.image.layer.v1.tar",
    OCI_LAYER_GZIP: OCI_LAYER_GZIP,
    "application/vnd.oci.image.layer.v1.tar": "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseLayer:
    """One layer of the base; `open` starts its compressed bytes, `plain` is its tar if at hand."""

    descriptor: Descriptor
    diff_id: str
    open: OpenSource
    plain: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage:
    """A base. `id` names its content; `config` is the `config` object of its image."""

    id: str
    layers: tuple[BaseLayer, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def contents(self) -> Iterator[Member | Removed | OpaqueDirectory]:
        """Yield what every layer adds and removes, bottom first.

        Raises CellError for layers that are not read here, LayerError for damaged ones.
        """
        for layer in self.layers:
            yield from _read(layer).strictly()


def _read(layer: BaseLayer) -> LayerTar:
    name, compression = layer.descriptor.digest, compression_of(layer.descriptor.media_type)
    if compression is Compression.ZSTD:
        raise CellError(
            "the base has layers compressed with zstd, which are not read here",
            fix="take a base with gzip layers, or use the docker builder",
        )
    if layer.plain is not None:
        return LayerTar(file_chunks(layer.plain), name, promised=Compression.NONE)
    return LayerTar(layer.open(), name, promised=compression)


def from_tar(path: Path, facts: FactsStore) -> BaseImage:
    """Make a base of one layer from the tar of a root file system.

    It is compressed once, beside the tar. Raises HostError if the disk does not take it.
    """
    packed = path.with_suffix(".tar.gz")
    state = path.stat()
    key = recipe_key({"base": path.name, "size": state.st_size, "time": state.st_mtime_ns})
    with FileLock(f"{packed}.lock"):  # cells are built side by side
        known = facts.get(key)
        if known is None or not packed.is_file() or packed.stat().st_size != known.size:
            known = _compress(path, packed, key)
            facts.put(known)
    layer = BaseLayer(
        descriptor=known.descriptor({}),
        diff_id=known.diff_id,
        open=lambda: file_chunks(packed),
        plain=path,
    )
    return BaseImage(id=known.diff_id, layers=(layer,))


def from_registry(registry: Registry, reference: Reference, platform: str) -> BaseImage:
    """Read manifest and configuration of a base in a registry; layers are read when needed.

    Raises CellError if the registry has no such image, none for the platform, or one with layers
    of an unknown kind.
    """
    where, repository = str(reference), reference.repository
    manifest = _manifest(registry, reference, platform)
    image = read_image(registry, repository, manifest, where=where)
    return BaseImage(
        id=manifest.digest,
        layers=tuple(_oci_layer(layer, where) for layer in image.layers),
        config=json.loads(image.config).get("config") or {},
        annotations={
            "org.opencontainers.image.base.name": f"{reference.registry}/{repository}",
            "org.opencontainers.image.base.digest": reference.digest or manifest.digest,
        },
    )


def _oci_layer(layer: LayerSource, where: str) -> BaseLayer:
    """Give a layer the media type that it has in an OCI image; its bytes stay."""
    stored = layer.descriptor
    media_type = _MEDIA_TYPES.get(stored.media_type) if stored else None
    if stored is None or media_type is None:
        kind = stored.media_type if stored else "without a descriptor"
        raise CellError(f"the base has a layer of unknown kind {kind}", where=where)
    return BaseLayer(
        descriptor=Descriptor(media_type=media_type, digest=stored.digest, size=stored.size),
        diff_id=layer.diff_id,
        open=layer.open,
    )


def _manifest(registry: Registry, reference: Reference, platform: str) -> Manifest:
    found = registry.manifest(reference.repository, reference.target)
    if found is None:
        raise CellError(
            f"there is no base image {reference}", fix="write another digest in matrix.yaml"
        )
    if found.media_type not in INDEXES:
        return found
    for digest in digests_for(found.json(), platform):
        chosen = registry.manifest(reference.repository, digest)
        if chosen is not None:
            return chosen
    raise CellError(f"the base image {reference} is not published for {platform}")


def _compress(path: Path, packed: Path, key: str) -> LayerFacts:
    plain, blob, size = hashlib.sha256(), hashlib.sha256(), 0
    deflater = isal_zlib.compressobj(level=2, wbits=31)

    def pieces() -> Iterator[bytes]:
        for chunk in file_chunks(path):
            plain.update(chunk)
            yield deflater.compress(chunk)
        yield deflater.flush()

    draft = packed.with_suffix(f".{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            for piece in pieces():
                blob.update(piece)
                size += file.write(piece)
        draft.replace(packed)
    except OSError as error:
        raise HostError(f"cannot write {packed}: {error.strerror}", fix="free space") from error
    finally:
        draft.unlink(missing_ok=True)
    return LayerFacts(
        key=key,
        digest=f"sha256:{blob.hexdigest()}",
        diff_id=f"sha256:{plain.hexdigest()}",
        size=size,
    )
