"""A proxy in front of a registry that answers one chosen request wrongly."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Fault = str
FAULTS = ("401", "403", "404", "429", "500", "slow", "cut", "wrong-digest")


@dataclass(kw_only=True)
class Proxy:
    """`host` is the proxy's; `fault` happens at request number `at` (from 0), once or for good."""

    host: str = ""
    fault: Fault = ""
    at: int = -1
    lasting: bool = False
    seen: list[str] = field(default_factory=list)
    slow: float = 0.3
    before: Callable[[str, str], None] = lambda method, path: None
    """Called with each request before it goes on, for tests that change the registry meanwhile."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def arm(self, fault: Fault, at: int, *, lasting: bool = False) -> None:
        self.fault, self.at, self.lasting = fault, at, lasting
        self.seen.clear()

    def disarm(self) -> None:
        self.arm("", -1)

    def take(self, line: str) -> Fault:
        with self._lock:
            number = len(self.seen)
            self.seen.append(line)
        hit = number >= self.at if self.lasting else number == self.at
        return self.fault if self.at >= 0 and hit else ""


@contextmanager
def fault_proxy(upstream: str) -> Iterator[Proxy]:
    """Run a proxy on loopback to `upstream` (`host:port`)."""
    proxy = Proxy()

    class Handler(_Handler):
        state = proxy
        target = upstream

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.host = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    state: Proxy
    target: str

    def _serve(self) -> None:
        fault = self.state.take(f"{self.command} {self.path}")
        self.state.before(self.command, self.path)
        body = self._body()
        match fault:
            case "401" | "403" | "404" | "429" | "500":
                self._refuse(int(fault))
            case _:
                if fault == "slow":
                    time.sleep(self.state.slow)
                self._forward(body, fault)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            pieces = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _refuse(self, status: int) -> None:
        text = b'{"errors":[{"code":"MADE","message":"made by the proxy"}]}'
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if status == 429:
            self.send_header("Retry-After", "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _forward(self, body: bytes, fault: Fault) -> None:
        connection = http.client.HTTPConnection(self.target, timeout=30)
        dropped = {"transfer-encoding", "content-length", "connection"}
        headers = {name: text for name, text in self.headers.items() if name.lower() not in dropped}
        if fault == "cut" and body:
            # The registry gets half of it, and then nothing more; so does the client.
            connection.putrequest(self.command, self.path, skip_host=True)
            for name, text in headers.items():
                connection.putheader(name, text)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders()
            connection.send(body[: len(body) // 2])
            connection.close()
            self._hang_up()
            return
        connection.request(self.command, self.path, body=body, headers=headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if fault == "cut":
            data_sent = data[: len(data) // 2]
            self._answer(answer, data_sent, length=len(data) + 1)
            self._hang_up()
            return
        if fault == "wrong-digest":
            data = bytes([data[0] ^ 1]) + data[1:] if data else data
        self._answer(answer, data, wrong=fault == "wrong-digest")

    def _answer(
        self,
        answer: http.client.HTTPResponse,
        data: bytes,
        *,
        length: int | None = None,
        wrong: bool = False,
    ) -> None:
        self.send_response(answer.status)
        for name, text in answer.getheaders():
            if name.lower() in ("transfer-encoding", "content-length", "connection", "date"):
                continue
            is_digest = name.lower() == "docker-content-digest"
            self.send_header(name, "sha256:" + "0" * 64 if wrong and is_digest else text)
        if self.command == "HEAD":
            self.send_header("Content-Length", answer.getheader("Content-Length") or "0")
        else:
            self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _hang_up(self) -> None:
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass
