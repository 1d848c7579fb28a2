"""A registry as the destination of an image."""

from __future__ import annotations

from collections.abc import Sequence

from torchproof.assemble.destination import OpenSource
from torchproof.errors import IntegrityError
from torchproof.registry import OCI_MANIFEST, Reference, Registry


class RemoteDestination:
    """An image name in a registry. Blobs of `beside` (repositories of it) are mounted."""

    def __init__(
        self, registry: Registry, reference: Reference, *, beside: Sequence[str] = ()
    ) -> None:
        self._registry = registry
        self._reference = reference
        self._beside = [one for one in beside if one != reference.repository]
        self._before = registry.uploaded_bytes

    @property
    def ref(self) -> str:
        """`registry/repository:tag`."""
        return str(self._reference)

    @property
    def written_bytes(self) -> int:
        """Bytes uploaded, repeats included."""
        return self._registry.uploaded_bytes - self._before

    def current(self) -> str | None:
        """Ask which manifest the tag points to."""
        return self._registry.manifest_digest(self._reference.repository, self._reference.target)

    def has(self, digest: str, size: int) -> bool:
        """Ask for a blob; try to mount it from the repositories beside."""
        repository = self._reference.repository
        found = self._registry.blob_size(repository, digest)
        if found is not None:
            # Some registries report no length; a different length means a different blob.
            if found not in (0, size):
                raise IntegrityError(
                    f"{self._registry.host} has {found} bytes for {digest}, which has {size}"
                )
            return True
        return any(
            self._registry.blob_size(other, digest) == size
            and self._registry.mount(repository, digest, other)
            for other in self._beside
        )

    def write(
        self, source: OpenSource, *, digest: str | None = None, size: int | None = None
    ) -> tuple[str, int]:
        """Upload a blob while it is made."""
        return self._registry.push_stream(
            self._reference.repository, source, digest=digest, size=size
        )

    def finish(self, manifest: bytes, config_digest: str, layers: tuple[str, ...]) -> str:
        """Store the manifest under the tag, after everything it names."""
        return self._registry.put_manifest(
            self._reference.repository, self._reference.target, manifest, media_type=OCI_MANIFEST
        )

    def stop(self) -> None:
        """Make running uploads end soon."""
        self._registry.stop()
