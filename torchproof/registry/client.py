"""Blobs, manifests, tags and referrers of one registry (OCI distribution spec 1.1)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from torchproof.errors import IntegrityError
from torchproof.model.digests import sha256_digest
from torchproof.registry.auth import Credentials, pull_scopes, push_scopes
from torchproof.registry.descriptor import (
    DOCKER_MANIFEST,
    DOCKER_MANIFEST_LIST,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
)
from torchproof.registry.download import blob_size, read_blob
from torchproof.registry.manifest import Manifest
from torchproof.registry.transport import Patience, Transport
from torchproof.registry.upload import Uploader

ACCEPTED = ", ".join((OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_MANIFEST_LIST))


class Registry:
    """One registry host. Safe to share between threads; a context manager.

    Credentials are Docker's stored ones unless given. Loopback hosts speak plain HTTP unless
    `plain_http` says otherwise. All methods raise `RegistryError` when the registry refuses or
    still does not answer after retries, `IntegrityError` when bytes are not what was promised.
    """

    def __init__(
        self,
        host: str,
        *,
        credentials: Credentials | None = None,
        plain_http: bool | None = None,
        patience: Patience | None = None,
        timeout: float = 60.0,
    ) -> None:
        self.host = host
        self._transport = Transport(
            host,
            credentials=credentials,
            plain_http=plain_http,
            patience=patience,
            timeout=timeout,
        )
        self._uploader = Uploader(self._transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def stop(self) -> None:
        """End all running uploads and waits of this client soon, with `RegistryError`."""
        self._transport.stop.set()

    @property
    def uploaded_bytes(self) -> int:
        """Bytes of blobs sent so far, repeats included."""
        return self._uploader.sent

    def ping(self) -> None:
        """Ask whether this is a registry that admits us (`GET /v2/`)."""
        self._transport.request("GET", "/v2/", doing="asking for its API")

    def blob_size(self, repository: str, digest: str) -> int | None:
        """Return a blob's size in bytes if the repository has it, else None."""
        return blob_size(self._transport, repository, digest)

    def read_blob(self, repository: str, digest: str) -> Iterator[bytes]:
        """Yield a blob in pieces; resumed by range when cut, its digest checked at the end."""
        return read_blob(self._transport, repository, digest)

    def mount(self, repository: str, digest: str, source: str) -> bool:
        """Mount a blob from another repository of this registry; False if the registry refuses."""
        return self._uploader.mount(repository, digest, source)

    def push_blob(self, repository: str, data: bytes, *, media_type: str) -> Descriptor:
        """Push a blob that fits in memory, unless the repository already has it."""
        digest = sha256_digest(data)
        if self.blob_size(repository, digest) is None:
            self._uploader.push(repository, lambda: iter((data,)), digest=digest, size=len(data))
        return Descriptor(media_type=media_type, digest=digest, size=len(data))

    def push_stream(
        self,
        repository: str,
        open_source: Callable[[], Iterator[bytes]],
        *,
        digest: str | None = None,
        size: int | None = None,
    ) -> tuple[str, int]:
        """Push a blob while it is being made; return its digest and size.

        `open_source` starts the bytes from the beginning, and is called again when an upload is
        cut, so it must give the same bytes each time. If `digest` (and `size`) is given, other
        bytes raise `IntegrityError` and never become a blob. Nothing is buffered.
        """
        return self._uploader.push(repository, open_source, digest=digest, size=size)

    def manifest(self, repository: str, target: str) -> Manifest | None:
        """Read a manifest by tag or digest; None if the repository does not have it."""
        response = self._transport.request(
            "GET",
            f"/v2/{repository}/manifests/{target}",
            scopes=pull_scopes(repository),
            headers={"Accept": ACCEPTED},
            accept=(200, 404),
            doing=f"reading the manifest {repository}:{target}",
        )
        if response.status_code == 404:
            return None
        media_type = response.headers.get("Content-Type", OCI_MANIFEST).partition(";")[0].strip()
        found = Manifest(media_type=media_type, data=response.content)
        promised = response.headers.get("Docker-Content-Digest", found.digest)
        if target.startswith("sha256:"):
            promised = target
        if found.digest != promised:
            raise IntegrityError(
                f"{self.host} sent a manifest with digest {found.digest} for {promised}"
            )
        return found

    def manifest_digest(self, repository: str, target: str) -> str | None:
        """Return the digest that a tag points to (HEAD); None if there is no such tag."""
        response = self._transport.request(
            "HEAD",
            f"/v2/{repository}/manifests/{target}",
            scopes=pull_scopes(repository),
            headers={"Accept": ACCEPTED},
            accept=(200, 404),
            doing=f"looking for the manifest {repository}:{target}",
        )
        if response.status_code == 404:
            return None
        digest = response.headers.get("Docker-Content-Digest")
        if digest:
            return str(digest)
        found = self.manifest(repository, target)
        return found.digest if found else None

    def put_manifest(
        self, repository: str, target: str, data: bytes, *, media_type: str = OCI_MANIFEST
    ) -> str:
        """Store a manifest under a tag or its digest; return its digest.

        A manifest with a `subject` becomes a referrer; where the registry lacks the referrers
        API, the tag of the fallback scheme is updated (distribution spec, "Referrers Tag Schema").
        """
        digest = sha256_digest(data)
        response = self._transport.request(
            "PUT",
            f"/v2/{repository}/manifests/{target}",
            scopes=push_scopes(repository),
            headers={"Content-Type": media_type},
            content=data,
            accept=(200, 201, 202),
            doing=f"storing the manifest {repository}:{target}",
        )
        stored = response.headers.get("Docker-Content-Digest", digest)
        if stored != digest:
            raise IntegrityError(
                f"{self.host} says it stored {stored} for the manifest {digest} "
                f"({repository}:{target})",
                fix="do not use this tag; the registry alters or confuses content",
            )
        manifest = Manifest(media_type=media_type, data=data).json()
        subject = manifest.get("subject")
        if subject and "OCI-Subject" not in response.headers:
            self._add_referrer(repository, subject["digest"], digest, data)
        return digest

    def referrers(
        self, repository: str, digest: str, artifact_type: str | None = None
    ) -> tuple[Descriptor, ...]:
        """List what refers to a manifest, from the referrers API or the fallback tag."""
        response = self._transport.request(
            "GET",
            f"/v2/{repository}/referrers/{digest}",
            scopes=pull_scopes(repository),
            headers={"Accept": OCI_INDEX},
            accept=(200, 400, 404, 405),
            doing=f"listing the referrers of {digest}",
        )
        media_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
        if response.status_code == 200 and media_type == OCI_INDEX:
            index: Mapping[str, Any] = Manifest(media_type=OCI_INDEX, data=response.content).json()
        else:
            found = self.manifest(repository, _fallback_tag(digest))
            index = found.json() if found else {}
        all_of_them = [
            Descriptor.from_json(one, where=f"referrers of {digest}")
            for one in index.get("manifests") or []
        ]
        return tuple(one for one in all_of_them if artifact_type in (None, one.artifact_type))

    def tags(self, repository: str) -> tuple[str, ...]:
        """List the tags of a repository, sorted; empty if the repository does not exist."""
        url: str | None = f"/v2/{repository}/tags/list?n=1000"
        tags: list[str] = []
        while url:
            response = self._transport.request(
                "GET",
                url,
                scopes=pull_scopes(repository),
                accept=(200, 404),
                doing=f"listing the tags of {repository}",
            )
            if response.status_code == 404:
                return ()
            answer = Manifest(media_type="", data=response.content).json()
            tags += answer.get("tags") or []
            url = response.links.get("next", {}).get("url")
        return tuple(sorted(set(tags)))

    def delete_manifest(self, repository: str, digest: str) -> None:
        """Delete a manifest by digest. Raise `RegistryError` if the registry does not allow it."""
        self._transport.request(
            "DELETE",
            f"/v2/{repository}/manifests/{digest}",
            scopes=(f"repository:{repository}:delete,pull,push",),
            accept=(200, 202, 404),
            doing=f"deleting {digest}",
        )

    def _add_referrer(self, repository: str, subject: str, digest: str, data: bytes) -> None:
        tag = _fallback_tag(subject)
        present = self.manifest(repository, tag)
        index: dict[str, Any] = (
            present.json()
            if present
            else {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}
        )
        if any(one.get("digest") == digest for one in index["manifests"]):
            return
        one = Manifest(media_type=OCI_MANIFEST, data=data).referrer()
        index["manifests"].append(one.as_json())
        self.put_manifest(repository, tag, json.dumps(index).encode(), media_type=OCI_INDEX)


def _fallback_tag(digest: str) -> str:
    return digest.replace(":", "-", 1)
