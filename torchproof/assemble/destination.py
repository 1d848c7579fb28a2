"""Where an image goes: an OCI layout on disk, or a registry. What both can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

OpenSource = Callable[[], Iterator[bytes]]
"""Starts the bytes of a blob from the beginning; may be called again after a fault."""


class Destination(Protocol):
    """Takes blobs in any order and from several threads, and the manifest at last."""

    @property
    def ref(self) -> str:
        """Name of the image there."""
        ...

    @property
    def written_bytes(self) -> int:
        """Bytes of blobs written or sent so far."""
        ...

    def current(self) -> str | None:
        """Return the digest of the image that the name refers to now, or None."""
        ...

    def has(self, digest: str, size: int) -> bool:
        """Tell whether a blob is there already, or could be taken from beside at no cost."""
        ...

    def write(
        self, source: OpenSource, *, digest: str | None = None, size: int | None = None
    ) -> tuple[str, int]:
        """Store a blob; return its digest and size. Other bytes than promised never become one."""
        ...

    def finish(self, manifest: bytes, config_digest: str, layers: tuple[str, ...]) -> str:
        """Make the name refer to this manifest, once all its blobs are there; return its digest."""
        ...

    def stop(self) -> None:
        """Make running writes end soon."""
        ...
