"""What OCI manifests are made of: descriptors and media types (OCI image spec 1.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchproof.errors import IntegrityError
from torchproof.model.digests import is_digest

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
OCI_EMPTY = "application/vnd.oci.empty.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_MANIFEST_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A reference to a blob or manifest by content: `digest` is `sha256:…`, `size` is bytes."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    artifact_type: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the descriptor as it is in manifests."""
        data: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
        }
        if self.artifact_type:
            data["artifactType"] = self.artifact_type
        if self.annotations:
            data["annotations"] = dict(self.annotations)
        return data

    @classmethod
    def from_json(cls, data: Any, *, where: str = "") -> Descriptor:
        """Read a descriptor; raise `IntegrityError` if it is invalid or its digest no sha256."""
        try:
            media_type, digest, size = data["mediaType"], data["digest"], data["size"]
        except (TypeError, KeyError) as error:
            raise IntegrityError(f"not a descriptor: {data!r}", where=where) from error
        if not isinstance(size, int) or size < 0 or not is_digest(digest):
            raise IntegrityError(
                f"descriptor with an invalid size or digest: {data!r}", where=where
            )
        return cls(
            media_type=str(media_type),
            digest=digest,
            size=size,
            annotations=data.get("annotations") or {},
            artifact_type=data.get("artifactType"),
        )
