"""An image's content → a registry: layers, configuration, manifest. Sets no tag that users pull."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from isal import isal_zlib

from torchproof.errors import IntegrityError
from torchproof.image.stored_image import Image, LayerSource
from torchproof.model.digests import sha256_digest
from torchproof.publish.manifests import put_manifest
from torchproof.publish.tags import content_tag
from torchproof.registry import OCI_CONFIG, OCI_LAYER_GZIP, OCI_MANIFEST, Descriptor, Registry

_LEVEL = 2
_GZIP = 31
"""Window bits that make zlib write a gzip header (without a time)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayers:
    """A file that maps each engine layer's diff_id to the digest and size of its compressed form.

    With it, a second run finds in the registry what the first run sent.
    """

    path: Path

    def get(self, diff_id: str) -> Descriptor | None:
        """Return a layer's compressed form, if it is known."""
        found = self._read().get(diff_id)
        if found is None:
            return None
        return Descriptor(media_type=OCI_LAYER_GZIP, digest=found[0], size=found[1])

    def put(self, diff_id: str, descriptor: Descriptor) -> None:
        """Record a layer's compressed form."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_suffix(".lock")):
            known = self._read() | {diff_id: (descriptor.digest, descriptor.size)}
            draft = self.path.with_suffix(".new")
            draft.write_text(json.dumps(known, indent=0, sort_keys=True), encoding="utf-8")
            draft.replace(self.path)

    def _read(self) -> dict[str, tuple[str, int]]:
        try:
            known = json.loads(self.path.read_text(encoding="utf-8"))
            return {name: (str(digest), int(size)) for name, (digest, size) in known.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}


def push_content(
    registry: Registry,
    repository: str,
    image: Image,
    immutable: str,
    *,
    packed: PackedLayers,
    annotations: dict[str, str],
) -> str:
    """Push an image, blobs first; return its manifest's digest.

    The manifest is the tested one, byte for byte, unless there is none yet (an engine's image) or
    annotations are asked for. Only its content tag names it.
    """
    layers = [_push_layer(registry, repository, layer, packed) for layer in image.layers]
    config = registry.push_blob(repository, image.config, media_type=OCI_CONFIG)
    data, media_type = _manifest(image, config, layers, annotations)
    tag = content_tag(immutable, sha256_digest(data))
    return put_manifest(registry, repository, tag, data, media_type=media_type)


def _manifest(
    image: Image, config: Descriptor, layers: list[Descriptor], annotations: dict[str, str]
) -> tuple[bytes, str]:
    if image.manifest is not None and not annotations:
        return image.manifest, image.media_type
    manifest: dict[str, object] = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": config.as_json(),
        "layers": [layer.as_json() for layer in layers],
    }
    if image.manifest is not None:
        manifest = json.loads(image.manifest)
        annotations = manifest.get("annotations", {}) | annotations  # type: ignore[operator]
    if annotations:
        manifest["annotations"] = annotations
    data = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    return data, image.media_type


def _push_layer(
    registry: Registry, repository: str, layer: LayerSource, packed: PackedLayers
) -> Descriptor:
    known = layer.descriptor or packed.get(layer.diff_id)
    if known is not None and registry.blob_size(repository, known.digest) == known.size:
        return known
    if layer.descriptor is not None:
        registry.push_stream(
            repository,
            layer.open,
            digest=layer.descriptor.digest,
            size=layer.descriptor.size,
        )
        return layer.descriptor
    digest, size = registry.push_stream(repository, _compressed(layer))
    found = Descriptor(media_type=OCI_LAYER_GZIP, digest=digest, size=size)
    packed.put(layer.diff_id, found)
    return found


def _compressed(layer: LayerSource) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        compressor = isal_zlib.compressobj(level=_LEVEL, wbits=_GZIP)
        hasher = hashlib.sha256()
        plain = True
        for number, chunk in enumerate(layer.open()):
            if number == 0 and chunk[:2] == b"\x1f\x8b":
                plain = False  # engines with containerd's store save layers compressed
            if not plain:
                yield chunk
                continue
            hasher.update(chunk)
            if out := compressor.compress(chunk):
                yield out
        if plain:
            yield compressor.flush()
            found = f"sha256:{hasher.hexdigest()}"
            if found != layer.diff_id:
                raise IntegrityError(f"the engine saved {found} for the layer {layer.diff_id}")

    return pieces
