"""A registry in a thread that misbehaves on request."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


@dataclass
class Fault:
    """What to do instead of answering: once for each of `times` requests that fit."""

    method: str
    part: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """Close the connection when this many bytes of the body have been stored."""
    times: int = 1


class FakeRegistry:
    def __init__(self) -> None:
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.uploads: dict[str, bytearray] = {}
        self.faults: list[Fault] = []
        self.requests: Counter[str] = Counter()
        self.received = 0
        self.lie_about_digest = False
        self.corrupt_blobs = False
        self.token: str | None = None
        self.basic: str | None = None
        self.scopes: list[list[str]] = []
        self.host = ""
        self.lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[FakeRegistry]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        server.daemon_threads = True
        self.host = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()

    def fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for one in self.faults:
                if one.method == method and one.part in path and one.times:
                    one.times -= 1
                    return one
        return None


def handler(registry: FakeRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            if "Content_Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def body(self, into: bytearray, limit: int | None) -> bool:
            """Read the body; False if it was cut off at the limit."""
            chunked = self.headers.get("Transfer-Encoding") == "chunked"
            left = int(self.headers.get("Content-Length", "0"))
            while True:
                if chunked:
                    left = int(self.rfile.readline().strip() or b"0", 16)
                if not left:
                    if chunked:
                        self.rfile.readline()
                    return True
                piece = self.rfile.read(left)
                if chunked:
                    self.rfile.readline()
                left = 0
                if limit is not None and len(into) + len(piece) > limit:
                    into += piece[: max(0, limit - len(into))]
                    return False
                into += piece
                if self.command == "PATCH":
                    with registry.lock:
                        registry.received += len(piece)

        def authorized(self, url: str) -> bool:
            given = self.headers.get("Authorization", "")
            if registry.basic and url != "/token":
                wanted = "Basic " + base64.b64encode(registry.basic.encode()).decode()
                if registry.token is None and given != wanted:
                    self.answer(401, WWW_Authenticate='Basic realm="r"')
                    return False
            if registry.token and url != "/token" and given != f"Bearer {registry.token}":
                realm = f'Bearer realm="http://{registry.host}/token",service="fake"'
                self.answer(401, WWW_Authenticate=realm)
                return False
            return True

        def serve(self) -> None:
            parts = urlsplit(self.path)
            url, query = parts.path, parse_qs(parts.query)
            registry.requests[f"{self.command} {'/'.join(url.split('/')[-2:-1])}"] += 1
            fault = registry.fault(self.command, self.path)
            if fault and fault.cut_after is None:
                self.body(bytearray(), None)
                self.answer(fault.status, b"{}", **fault.headers)
                return
            if not self.authorized(url):
                self.close_connection = True
                return
            if url == "/token":
                registry.scopes.append(query.get("scope", []))
                self.answer(200, json.dumps({"token": registry.token}).encode())
                return
            if url == "/v2/":
                self.answer(200)
                return
            repository, _, rest = url.removeprefix("/v2/").rpartition("/blobs/uploads/")
            if repository:
                self.upload(repository, rest, query, fault)
                return
            repository, kind, name = url.removeprefix("/v2/").rsplit("/", 2)
            if kind == "blobs":
                data = registry.blobs.get((repository, name))
                if data is None:
                    self.answer(404)
                elif self.command == "HEAD":
                    self.answer(200, Content_Length=str(len(data)))
                else:
                    wrong = data[:-1] + b"?" if registry.corrupt_blobs else data
                    self.answer(200, wrong)
            elif kind == "manifests":
                self.manifest(repository, name)
            else:
                self.answer(404)

        def upload(
            self, repository: str, name: str, query: dict[str, list[str]], fault: Fault | None
        ) -> None:
            if self.command == "POST":
                if "mount" in query:
                    data = registry.blobs.get((query["from"][0], query["mount"][0]))
                    if data is not None:
                        registry.blobs[repository, query["mount"][0]] = data
                        self.answer(201)
                        return
                name = str(len(registry.uploads))
                registry.uploads[name] = bytearray()
                self.answer(202, Location=f"/v2/{repository}/blobs/uploads/{name}")
                return
            if name not in registry.uploads:
                self.answer(404)
                return
            data = registry.uploads[name]
            if self.command == "GET":
                self.answer(204, Range=f"0-{max(0, len(data) - 1)}", Location=self.path)
            elif self.command == "PATCH":
                if not self.body(data, fault.cut_after if fault else None):
                    self.close_connection = True
                    self.connection.close()
                    return
                self.answer(202, Location=self.path)
            elif self.command == "PUT":
                wanted = query["digest"][0]
                found = f"sha256:{hashlib.sha256(data).hexdigest()}"
                if found != wanted:
                    self.answer(400, b'{"errors":[{"code":"DIGEST_INVALID","message":"no"}]}')
                    return
                registry.blobs[repository, found] = bytes(data)
                said = "sha256:" + "0" * 64 if registry.lie_about_digest else found
                self.answer(201, Docker_Content_Digest=said)
            else:
                self.answer(204)

        def manifest(self, repository: str, name: str) -> None:
            if self.command == "PUT":
                data = bytearray()
                self.body(data, None)
                digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
                for key in (name, digest):
                    value = (self.headers["Content-Type"], bytes(data))
                    registry.manifests[repository, key] = value
                self.answer(201, Docker_Content_Digest=digest)
                return
            found = registry.manifests.get((repository, name))
            if found is None:
                self.answer(404)
                return
            digest = f"sha256:{hashlib.sha256(found[1]).hexdigest()}"
            self.answer(200, found[1], Content_Type=found[0], Docker_Content_Digest=digest)

    for method in ("HEAD", "GET", "POST", "PATCH", "PUT", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.serve)
    return Handler
