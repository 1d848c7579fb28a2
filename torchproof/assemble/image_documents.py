"""Layers → configuration and manifest of an OCI image (image spec 1.1). Pure: no clock, no host."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torchproof.image.config import CELL_LABEL, ImageConfig
from torchproof.model.digests import sha256_digest
from torchproof.registry import OCI_CONFIG, OCI_MANIFEST, Descriptor

CREATED: Final = "1980-01-01T00:00:00Z"
"""Equal locks give equal images: no image carries a time stamp."""
TITLE: Final = "org.opencontainers.image.title"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLayerFacts:
    """One layer of a finished image. `title` is empty for layers of a base from a registry."""

    name: str
    title: str
    descriptor: Descriptor
    diff_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Layers, bottom first, and the two documents that make them an image, byte by byte."""

    config: bytes
    manifest: bytes
    layers: tuple[ImageLayerFacts, ...]

    @property
    def config_digest(self) -> str:
        """`sha256:…`; Docker calls it the image id."""
        return sha256_digest(self.config)

    @property
    def digest(self) -> str:
        """`sha256:…` of the manifest."""
        return sha256_digest(self.manifest)

    @property
    def layer_digests(self) -> tuple[str, ...]:
        """Digests of the layers' blobs, bottom first."""
        return tuple(layer.descriptor.digest for layer in self.layers)


def make_image(
    platform: str,
    config: ImageConfig,
    layers: Sequence[ImageLayerFacts],
    *,
    base_config: Mapping[str, Any],
    annotations: Mapping[str, str],
) -> Image:
    """Write configuration and manifest. What the base says holds where `config` says nothing."""
    system, _, machine = platform.partition("/")
    architecture, _, variant = machine.partition("/")
    document: dict[str, Any] = {
        "created": CREATED,
        "architecture": architecture,
        "os": system,
        "config": _run_config(config, base_config),
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [
            {"created": CREATED, "created_by": f"torchproof assemble: {layer.title or layer.name}"}
            for layer in layers
        ],
    }
    if variant:
        document["variant"] = variant
    config_bytes = _json(document)
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": Descriptor(
            media_type=OCI_CONFIG, digest=sha256_digest(config_bytes), size=len(config_bytes)
        ).as_json(),
        "layers": [layer.descriptor.as_json() for layer in layers],
        "annotations": _annotations(config) | dict(annotations),
    }
    return Image(config=config_bytes, manifest=_json(manifest), layers=tuple(layers))


def _run_config(config: ImageConfig, base: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: base[name] for name in ("ExposedPorts", "Volumes", "StopSignal") if name in base}
    env = dict(one.partition("=")[::2] for one in base.get("Env") or ())
    env |= config.env
    labels = {**(base.get("Labels") or {}), **config.labels}
    run: dict[str, Any] = kept | {
        "User": config.user,
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Cmd": list(config.cmd),
        "WorkingDir": config.workdir,
        "Labels": labels,
    }
    if config.entrypoint:
        run["Entrypoint"] = list(config.entrypoint)
    return run


def _annotations(config: ImageConfig) -> dict[str, str]:
    return {
        name: value
        for name, value in config.labels.items()
        if name.startswith("org.opencontainers.image.") or name == CELL_LABEL
    }


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
