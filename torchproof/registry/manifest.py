"""A manifest as bytes, which its digest is computed from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from torchproof.errors import IntegrityError
from torchproof.model.digests import sha256_digest
from torchproof.registry.descriptor import Descriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest or index as the registry holds it, byte for byte."""

    media_type: str
    data: bytes

    @property
    def digest(self) -> str:
        """`sha256:…` of the bytes."""
        return sha256_digest(self.data)

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)

    def json(self) -> dict[str, Any]:
        """Parse the bytes; raise `IntegrityError` if they are not a JSON object."""
        try:
            value = json.loads(self.data)
        except ValueError as error:
            raise IntegrityError(f"manifest {self.digest} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise IntegrityError(f"manifest {self.digest} is not a JSON object")
        return value

    def descriptor(self) -> Descriptor:
        """Return the descriptor of this manifest."""
        return Descriptor(media_type=self.media_type, digest=self.digest, size=self.size)

    def referrer(self) -> Descriptor:
        """Return the descriptor of this manifest for a list of referrers."""
        document = self.json()
        config = document.get("config") or {}
        return Descriptor(
            media_type=document.get("mediaType", self.media_type),
            digest=self.digest,
            size=self.size,
            annotations=document.get("annotations") or {},
            artifact_type=document.get("artifactType") or config.get("mediaType"),
        )
