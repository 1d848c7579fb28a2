"""Uploads of blobs: streamed, hashed on the way, resumed where they were cut off."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator

import httpx

from torchproof._http import failure_text
from torchproof.errors import IntegrityError, RegistryError
from torchproof.registry.auth import push_scopes
from torchproof.registry.transport import RETRIED, Transport, describe

# 401: the token expired between two requests; the challenge is answered and the bytes sent again.
# 2xx: the registry answered before it had read all bytes.
_RETRIED = RETRIED | {200, 201, 202, 401}

Source = Callable[[], Iterator[bytes]]


class Uploader:
    """Pushes blobs by POST, PATCH, PUT, as Docker does and all registries support.

    Only the last PUT needs the digest, so that making, hashing and sending a layer overlap.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self.sent = 0

    def mount(self, repository: str, digest: str, source: str) -> bool:
        """Mount a blob of another repository; False (and no upload left open) if refused."""
        response = self._transport.request(
            "POST",
            f"/v2/{repository}/blobs/uploads/",
            params={"mount": digest, "from": source},
            scopes=(f"repository:{repository}:pull,push", f"repository:{source}:pull"),
            accept=(201, 202, 404),
            doing=f"mounting {digest} from {source}",
        )
        if response.status_code == 202:
            self._cancel(repository, self._location(response, None))
        return response.status_code == 201

    def push(
        self, repository: str, source: Source, *, digest: str | None, size: int | None
    ) -> tuple[str, int]:
        """Push one blob; return digest and size. See `Registry.push_stream`."""
        doing = f"uploading {digest or 'a layer'} to {repository}"
        location: str | None = None
        problem = ""
        for attempt in range(self._transport.patience.attempts):
            response: httpx.Response | None = None
            start = self._received(repository, location) if location else None
            if location is None or start is None:
                location, start = self._begin(repository, doing), 0
            stream = _Hashed(self, source, start, digest, size)
            try:
                response = self._patch(repository, location, stream)
                if response.status_code in (200, 201, 202) and stream.finished:
                    location = self._location(response, location)
                    response = self._finish(repository, location, stream.digest)
                    if response.status_code in (200, 201):
                        self._confirm(response, stream.digest)
                        return stream.digest, stream.size
            except httpx.TransportError as error:
                problem = failure_text(error)
            except IntegrityError:
                self._cancel(repository, location)
                raise
            else:
                problem = describe(response)
                # An upload that the registry no longer knows (404, 416) starts over.
                if response.status_code in (404, 416):
                    location = None
                elif response.status_code not in _RETRIED:
                    raise self._transport.refusal(response, doing)
            if attempt + 1 < self._transport.patience.attempts:
                self._transport.pause(attempt, response)
        raise self._transport.unreachable(problem, doing)

    def count(self, sent: int) -> None:
        """Add to the bytes sent; raise `RegistryError` if `stop` is set."""
        if self._transport.stop.is_set():
            raise RegistryError("stopped while uploading")
        with self._lock:
            self.sent += sent

    def _begin(self, repository: str, doing: str) -> str:
        response = self._transport.request(
            "POST",
            f"/v2/{repository}/blobs/uploads/",
            scopes=push_scopes(repository),
            accept=(202,),
            doing=doing,
        )
        return self._location(response, None)

    def _received(self, repository: str, location: str) -> int | None:
        """Ask how many bytes of an upload arrived; None if it cannot be resumed."""
        try:
            response = self._transport.once("GET", location, scopes=push_scopes(repository))
        except httpx.TransportError:
            return None
        first, dash, last = response.headers.get("Range", "").removeprefix("bytes=").partition("-")
        if response.status_code != 204 or not dash or first != "0" or not last.isdigit():
            return None
        # "0-0" means one byte or none; starting over costs one byte at most.
        return int(last) + 1 if int(last) else None

    def _patch(self, repository: str, location: str, stream: _Hashed) -> httpx.Response:
        headers = {"Content-Type": "application/octet-stream"}
        if stream.length is not None:
            headers["Content-Length"] = str(stream.length)
        return self._transport.once(
            "PATCH",
            location,
            scopes=push_scopes(repository),
            headers=headers,
            content=iter(stream),
        )

    def _finish(self, repository: str, location: str, digest: str) -> httpx.Response:
        url = str(httpx.URL(location).copy_merge_params({"digest": digest}))
        return self._transport.once("PUT", url, scopes=push_scopes(repository))

    def _confirm(self, response: httpx.Response, digest: str) -> None:
        stored = response.headers.get("Docker-Content-Digest", digest)
        if stored != digest:
            raise IntegrityError(
                f"{self._transport.registry} says it stored {stored} for the blob {digest}"
            )

    def _cancel(self, repository: str, location: str) -> None:
        try:
            self._transport.once("DELETE", location, scopes=push_scopes(repository))
        except httpx.TransportError:
            return  # the registry drops abandoned uploads itself

    def _location(self, response: httpx.Response, before: str | None) -> str:
        location = response.headers.get("Location", "") or before
        if not location:
            raise RegistryError(f"{self._transport.registry} began an upload, but sent no Location")
        return str(httpx.URL(self._transport.base).join(location))


class _Hashed:
    """The bytes of a source from `start` on; hashes all of them, counts those sent.

    Raises `IntegrityError` if they do not have the `wanted` digest and size (where known).
    """

    def __init__(
        self,
        uploader: Uploader,
        source: Source,
        start: int,
        wanted: str | None,
        wanted_size: int | None,
    ) -> None:
        self._uploader = uploader
        self._source = source
        self._hasher = hashlib.sha256()
        self._wanted = wanted
        self._wanted_size = wanted_size
        self.start = start
        self.size = 0
        self.finished = False

    @property
    def digest(self) -> str:
        return "sha256:" + self._hasher.hexdigest()

    @property
    def length(self) -> int | None:
        """Bytes to send, if the whole size is known and more than what has arrived."""
        if self._wanted_size is None or self._wanted_size <= self.start:
            return None
        return self._wanted_size - self.start

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._source():
            self._hasher.update(chunk)
            skip = max(0, self.start - self.size)
            self.size += len(chunk)
            if self._wanted_size is not None and self.size > self._wanted_size:
                raise self._unexpected()
            if skip < len(chunk):
                piece = memoryview(chunk)[skip:] if skip else chunk
                self._uploader.count(len(piece))
                yield bytes(piece) if skip else chunk
        if self._wanted not in (None, self.digest) or self._wanted_size not in (None, self.size):
            raise self._unexpected()
        self.finished = True

    def _unexpected(self) -> IntegrityError:
        return IntegrityError(
            f"a layer has digest {self.digest} and {self.size} bytes or more, but the record says "
            f"{self._wanted} and {self._wanted_size} bytes",
            fix="delete the recorded layer facts (layers.yaml, the cache) and build again",
        )
