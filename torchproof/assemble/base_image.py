"""The base of an assembled image: layers that exist, its configuration, and a few files of it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from filelock import FileLock
from isal import igzip, isal_zlib

from torchproof.assemble.destination import OpenSource
from torchproof.assemble.layer_facts import FactsStore, LayerFacts, recipe_key
from torchproof.assemble.layout_destination import file_chunks
from torchproof.errors import CellError, HostError, IntegrityError
from torchproof.registry import (
    DOCKER_MANIFEST_LIST,
    OCI_INDEX,
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

    def members(self) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
        """Yield every member of every layer, bottom first, with its content."""
        for layer in self.layers:
            if layer.descriptor.media_type.endswith("+zstd"):
                raise CellError(
                    "the base has layers compressed with zstd, which are not read here",
                    fix="take a base with gzip layers, or use the docker builder",
                )
            yield from _members(layer)


def _members(layer: BaseLayer) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    try:
        with _archive(layer) as archive:
            for info in archive:
                yield info, archive.extractfile(info) if info.isreg() else None
    except (tarfile.TarError, EOFError, OSError) as error:
        raise IntegrityError(f"layer {layer.descriptor.digest} is no tar: {error}") from error


def _archive(layer: BaseLayer) -> tarfile.TarFile:
    if layer.plain is not None:
        return tarfile.open(layer.plain, "r:")
    raw: IO[bytes] = io.BufferedReader(_Readable(layer.open()), 1 << 20)
    unpack = cast("Callable[[IO[bytes]], IO[bytes]]", igzip.open)
    packed = layer.descriptor.media_type.endswith("gzip")
    return tarfile.open(fileobj=unpack(raw) if packed else raw, mode="r|")


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

    Raises CellError if the registry has no such image, or none for the platform.
    """
    repository = reference.repository
    manifest = _manifest(registry, reference, platform)
    data = manifest.json()
    where = str(reference)
    config_at = Descriptor.from_json(data.get("config"), where=where)
    config = json.loads(b"".join(registry.read_blob(repository, config_at.digest)))
    diff_ids = config.get("rootfs", {}).get("diff_ids") or []
    found = [Descriptor.from_json(one, where=where) for one in data.get("layers") or []]
    if len(diff_ids) != len(found):
        raise IntegrityError("the base's configuration and manifest disagree", where=where)
    layers: list[BaseLayer] = []
    for one, diff_id in zip(found, diff_ids, strict=True):
        media_type = _MEDIA_TYPES.get(one.media_type)
        if media_type is None:
            raise CellError(f"the base has a layer of unknown kind {one.media_type}", where=where)
        descriptor = Descriptor(media_type=media_type, digest=one.digest, size=one.size)

        def open_layer(digest: str = one.digest) -> Iterator[bytes]:
            return registry.read_blob(repository, digest)

        layers.append(BaseLayer(descriptor=descriptor, diff_id=diff_id, open=open_layer))
    return BaseImage(
        id=manifest.digest,
        layers=tuple(layers),
        config=config.get("config") or {},
        annotations={
            "org.opencontainers.image.base.name": f"{reference.registry}/{repository}",
            "org.opencontainers.image.base.digest": reference.digest or manifest.digest,
        },
    )


def _manifest(registry: Registry, reference: Reference, platform: str) -> Manifest:
    found = registry.manifest(reference.repository, reference.target)
    if found is None:
        raise CellError(
            f"there is no base image {reference}", fix="write another digest in matrix.yaml"
        )
    if found.media_type not in (OCI_INDEX, DOCKER_MANIFEST_LIST):
        return found
    system, _, architecture = platform.partition("/")
    for one in found.json().get("manifests") or ():
        fits = one.get("platform") or {}
        if (fits.get("os"), fits.get("architecture")) == (system, architecture.split("/")[0]):
            chosen = registry.manifest(reference.repository, one["digest"])
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


class _Readable(io.RawIOBase):
    """Chunks as a file to read from."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
