"""Bytes over HTTP into a file: streaming, resumed by Range, bounded retries."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from torchproof._http import NO_ANSWER, failure_text, redact
from torchproof.errors import IndexUnreachableError

_CHUNK = 1 << 20
_ATTEMPTS = 3
_READ = httpx.Timeout(30.0, connect=5.0)


def download(
    client: httpx.Client,
    url: str,
    part: Path,
    *,
    size: int | None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Download a file to `part`, going on where an earlier attempt stopped.

    `size` in bytes, if known. Raises IndexUnreachableError if the server does not give the file,
    OSError if it cannot be written.
    """
    problem = ""
    for attempt in range(_ATTEMPTS):
        time.sleep(0.3 * attempt)
        have = part.stat().st_size if part.is_file() else 0
        if size is not None and have == size:
            return
        if size is None or have > size:
            part.unlink(missing_ok=True)
            have = 0
        try:
            _stream(client, url, part, have, progress)
        except httpx.TimeoutException:
            problem = "no data in time"
        except NO_ANSWER as error:
            problem = failure_text(error)
        else:
            return
    raise IndexUnreachableError(f"download of {redact(url)} stopped: {problem}")


def _stream(
    client: httpx.Client,
    url: str,
    part: Path,
    have: int,
    progress: Callable[[int], None] | None,
) -> None:
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with client.stream("GET", url, headers=headers, timeout=_READ) as answer:
        if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink(missing_ok=True)
        answer.raise_for_status()
        resumed = answer.status_code == httpx.codes.PARTIAL_CONTENT
        if progress and have and not resumed:
            progress(-have)
        with part.open("ab" if resumed else "wb") as file:
            for chunk in answer.iter_bytes(_CHUNK):
                file.write(chunk)
                if progress:
                    progress(len(chunk))


def sha256_of(file: Path) -> str:
    """Return the sha256 of a file in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
