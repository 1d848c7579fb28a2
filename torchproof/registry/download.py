"""Downloads of blobs: streamed, resumed where they were cut, checked against their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import httpx

from torchproof._http import failure_text
from torchproof.errors import IntegrityError
from torchproof.registry.auth import pull_scopes
from torchproof.registry.transport import RETRIED, Transport, describe


def blob_size(transport: Transport, repository: str, digest: str) -> int | None:
    """Return a blob's size in bytes if the repository has it, else None. Raises RegistryError."""
    response = transport.request(
        "HEAD",
        f"/v2/{repository}/blobs/{digest}",
        scopes=pull_scopes(repository),
        accept=(200, 404),
        doing=f"looking for blob {digest}",
    )
    if response.status_code == 404:
        return None
    return int(response.headers.get("Content-Length", "0"))


def read_blob(transport: Transport, repository: str, digest: str) -> Iterator[bytes]:
    """Yield a blob in pieces. Raises RegistryError, and IntegrityError after the last piece."""
    done, tries = 0, 0
    hasher = hashlib.sha256()
    url, scopes = f"/v2/{repository}/blobs/{digest}", pull_scopes(repository)
    blob_size(transport, repository, digest)  # answers the authentication challenge
    while True:
        problem = ""
        try:
            headers = {"Range": f"bytes={done}-"} if done else {}
            with transport.stream("GET", url, scopes=scopes, headers=headers) as response:
                if response.status_code in RETRIED:
                    problem = describe(response)
                elif response.status_code not in (200, 206):
                    raise transport.refusal(response, f"reading blob {digest}")
                else:
                    skip = done if response.status_code == 200 else 0
                    for chunk in response.iter_raw(1 << 20):
                        piece, skip = chunk[skip:], max(0, skip - len(chunk))
                        hasher.update(piece)
                        done += len(piece)
                        yield piece
        except httpx.TransportError as error:
            problem = failure_text(error)
        if not problem:
            break
        tries += 1
        if tries >= transport.patience.attempts:
            raise transport.unreachable(problem, f"reading blob {digest}")
        transport.pause(tries, None)
    if f"sha256:{hasher.hexdigest()}" != digest:
        raise IntegrityError(
            f"{transport.registry} sent {done} bytes with digest sha256:{hasher.hexdigest()} "
            f"for blob {digest} of {repository}"
        )
