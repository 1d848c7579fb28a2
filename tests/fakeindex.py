"""A package index of the tests' own, on loopback, in the form of the PyTorch index and of PyPI's.

`with FakeIndex(published_wheels(load_facts())) as index:` serves `index.urls`, which go into a
matrix as `indexes:`. The wheels are small but whole: an installer takes them, `import torch` works.
Faults are set by file name or page: `index.faults["torch-2.7.1+cu118-…whl"] = Fault.TRUNCATED`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import io
import json
import struct
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import quote, unquote

from torchproof.model.versions import cuda_version
from torchproof.upstream.facts import Build, Facts, Release

TORCHES = ("2.7.1", "2.9.1")
LINUX = "platform_system == 'Linux' and platform_machine == 'x86_64'"


class Fault(StrEnum):
    """What can be wrong with a page or a file."""

    HASH_ABSENT = "hash absent"
    HASH_WRONG = "hash wrong"
    STALL = "stall"
    TRUNCATED = "truncated"
    """The connection ends half-way; asking on from there works."""
    CUT = "cut"
    """The server holds, and says so, only the first half of the file."""
    UNAVAILABLE = "503"
    FORBIDDEN = "403"
    GARBAGE = "garbage"


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """One made wheel."""

    filename: str
    data: bytes
    metadata: bytes

    @property
    def project(self) -> str:
        return self.filename.split("-", 1)[0].replace("_", "-").lower()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def make_wheel(
    name: str,
    version: str,
    *,
    requires: Iterable[str] = (),
    files: Mapping[str, str | bytes] | None = None,
    scripts: Mapping[str, str] | None = None,
    tag: str = "py3-none-any",
) -> Wheel:
    """Make a wheel with METADATA, WHEEL and RECORD; `files` are paths and contents."""
    base = f"{name.replace('-', '_')}-{version}"
    info = f"{base}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    metadata = "\n".join([*lines, "", ""]).encode()
    tags = "".join(f"Tag: {one}\n" for one in _tags(tag))
    contents: dict[str, bytes] = {
        path: text.encode() if isinstance(text, str) else text
        for path, text in (files or {}).items()
    }
    contents[f"{info}/METADATA"] = metadata
    contents[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n{tags}".encode()
    )
    if scripts:
        entries = "".join(f"{script} = {target}\n" for script, target in scripts.items())
        contents[f"{info}/entry_points.txt"] = f"[console_scripts]\n{entries}".encode()
    record = "".join(f"{path},{_record(data)},{len(data)}\n" for path, data in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in contents.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), data)
    return Wheel(filename=f"{base}-{tag}.whl", data=stream.getvalue(), metadata=metadata)


def _tags(tag: str) -> list[str]:
    python, abi, platforms = tag.split("-")
    return [f"{python}-{abi}-{platform}" for platform in platforms.split(".")]


def _record(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


def make_torch(release: Release, build: Build, *, local: str = "", python: str = "3.11") -> Wheel:
    """Make a stub of torch that pins what the real one pins; `local` is `+cu118` or empty."""
    version = f"{release.version}{local}"
    interpreter = "cp" + python.replace(".", "")
    stub = f"__version__ = {release.version + '+' + build.cuda!r}\n"
    return make_wheel(
        "torch",
        version,
        requires=["filelock", "typing-extensions>=4.10.0", *_pins(build)],
        files={
            "torch/__init__.py": "from torch.version import __version__\n",
            "torch/version.py": f"{stub}cuda = {cuda_version(build.cuda)!r}\n",
            "torch/distributed/__init__.py": "",
            "torch/distributed/run.py": "def main():\n    print('torchrun')\n",
            "torch/lib/libtorch_cuda.so": library(f"torch {version}"),
        },
        scripts={"torchrun": "torch.distributed.run:main"},
        tag=f"{interpreter}-{interpreter}-manylinux_2_28_x86_64",
    )


def library(text: str) -> bytes:
    """Make the header of an x86_64 shared library; `text` follows, to tell one from another."""
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0)
    return ident + header + text.encode() * 50


def _suffix(cuda: str) -> str:
    return f"-cu{cuda_version(cuda).split('.')[0]}"


def _cuda_wheels(build: Build) -> list[tuple[str, str, dict[str, str | bytes]]]:
    plain = "" if _suffix(build.cuda) == "-cu13" else _suffix(build.cuda)
    runtime = f"{cuda_version(build.cuda)}.90"
    libraries = {
        f"nvidia-cuda-runtime{plain}": (runtime, "nvidia/cuda_runtime/lib/libcudart.so"),
        f"nvidia-cublas{plain}": (f"{runtime}.1", "nvidia/cublas/lib/libcublas.so"),
        f"nvidia-cudnn{_suffix(build.cuda)}": (build.cudnn, "nvidia/cudnn/lib/libcudnn.so.9"),
        f"nvidia-nccl{_suffix(build.cuda)}": (build.nccl, "nvidia/nccl/lib/libnccl.so.2"),
    }
    return [
        (name, version, {path: library(f"{name} {version}")})
        for name, (version, path) in libraries.items()
        if version and build.platforms
    ]


def _pins(build: Build) -> list[str]:
    pins = [f"{name}=={version}; {LINUX}" for name, version, _ in _cuda_wheels(build)]
    return [*pins, f"triton=={build.triton}; {LINUX}"]


def published_wheels(
    facts: Facts, torches: Iterable[str] = TORCHES, python: str = "3.11"
) -> dict[str, list[Wheel]]:
    """Make every published build of some releases: alias → wheels, as upstream spreads them."""
    shelves: dict[str, list[Wheel]] = {"pypi": [], "pytorch/cu121": []}
    pypi = {
        wheel.filename: wheel
        for wheel in (
            make_wheel("filelock", "3.20.0", files={"filelock/__init__.py": ""}),
            make_wheel("typing-extensions", "4.15.0", files={"typing_extensions.py": ""}),
            make_wheel("numpy", "2.3.5", files={"numpy/__init__.py": ""}),
            _library("nvidia-nccl-cu12", "2.30.7", "nvidia/nccl/lib/libnccl.so.2"),
        )
    }
    for torch in torches:
        release = facts.releases[torch]
        for cuda, build in release.builds.items():
            shelf = shelves.setdefault(f"pytorch/{cuda}", [])
            shelf.append(make_torch(release, build, local=f"+{cuda}", python=python))
            if release.default["linux/amd64"] == cuda:
                plain = make_torch(release, build, python=python)
                pypi[plain.filename] = plain
            made = [
                make_wheel(name, version, files=files, tag="py3-none-manylinux2014_x86_64")
                for name, version, files in _cuda_wheels(build)
            ]
            interpreter = "cp" + python.replace(".", "")
            made.append(
                make_wheel(
                    "triton",
                    build.triton or "0",
                    files={"triton/__init__.py": ""},
                    tag=f"{interpreter}-{interpreter}-manylinux_2_27_x86_64.manylinux_2_28_x86_64",
                )
            )
            pypi |= {wheel.filename: wheel for wheel in made}
    shelves["pypi"] = list(pypi.values())
    return shelves


def _library(name: str, version: str, path: str) -> Wheel:
    return make_wheel(
        name,
        version,
        files={path: library(f"{name} {version}")},
        tag="py3-none-manylinux_2_18_x86_64",
    )


@dataclass
class FakeIndex:
    """Serves shelves of wheels over HTTP. `requests` lists what was asked for, in order."""

    shelves: Mapping[str, list[Wheel]]
    faults: dict[str, Fault] = field(default_factory=dict)
    """File name, page path (`/whl/cu118/torch/`) or `*` → fault."""
    json: bool = False
    metadata: bool = True
    sizes: bool = True
    login: str = ""
    """`user:password` that every request must carry; empty for none."""
    requests: list[str] = field(default_factory=list)

    def __enter__(self) -> FakeIndex:
        self._closing = threading.Event()
        index = self

        class Handler(_Handler):
            fake = index

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def urls(self) -> dict[str, str]:
        """What a matrix names as `indexes:`."""
        return {"pypi": f"{self.url}/simple", "pytorch": f"{self.url}/whl"}

    def wheel(self, filename: str) -> Wheel | None:
        every = (wheel for shelf in self.shelves.values() for wheel in shelf)
        return next((wheel for wheel in every if wheel.filename == filename), None)

    def fault(self, *names: str) -> Fault | None:
        found = (self.faults.get(name) for name in (*names, "*"))
        return next((fault for fault in found if fault is not None), None)

    def hold(self) -> None:
        """Answer nothing until the test is over."""
        self._closing.wait(60)

    def page(self, alias: str, project: str) -> list[tuple[Wheel, str | None]] | None:
        """Return the wheels of a page with the hash that it tells; None for no such project."""
        shelf = [wheel for wheel in self.shelves.get(alias, ()) if wheel.project == project]
        return [(wheel, self._told(wheel)) for wheel in shelf] or None

    def _told(self, wheel: Wheel) -> str | None:
        match self.fault(wheel.filename):
            case Fault.HASH_ABSENT:
                return None
            case Fault.HASH_WRONG:
                return hashlib.sha256(b"another file").hexdigest()
            case _:
                return wheel.sha256


class _Handler(BaseHTTPRequestHandler):
    fake: FakeIndex
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(self.path)
        self.fake.requests.append(f"{self.command} {path}")
        name = path.rsplit("/", 1)[-1]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if not self._let_in():
                self._send(401, b"who are you", "text/plain")
                return
            match self.fake.fault(path, name):
                case Fault.STALL:
                    self.fake.hold()
                    self.close_connection = True
                case Fault.UNAVAILABLE:
                    self._send(503, b"overloaded", "text/plain")
                case Fault.FORBIDDEN:
                    self._send(403, b"forbidden", "text/plain")
                case Fault.GARBAGE:
                    self._send(200, b"\x00\xffnot what you want", "application/octet-stream")
                case fault:
                    self._route(path, name, fault)

    def _let_in(self) -> bool:
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        return not self.fake.login or base64.b64decode(given).decode() == self.fake.login

    def _route(self, path: str, name: str, fault: Fault | None) -> None:
        parts = path.strip("/").split("/")
        match parts:
            case ["simple", project]:
                self._page("pypi", project)
            case ["whl", cuda, project] if not project.endswith(".whl"):
                self._page(f"pytorch/{cuda}", project)
            case ["files", _] if name.endswith(".metadata"):
                wheel = self.fake.wheel(name.removesuffix(".metadata"))
                if wheel and self.fake.metadata:
                    self._send(200, wheel.metadata, "text/plain")
                else:
                    self._send(404, b"", "text/plain")
            case ["files", _]:
                self._file(name, fault)
            case _:
                self._send(404, b"no such page", "text/plain")

    def _page(self, alias: str, project: str) -> None:
        entries = self.fake.page(alias, project)
        if entries is None:
            self._send(404, b"no such project", "text/plain")
        elif self.fake.json and alias == "pypi":
            self._send(200, self._json(entries), "application/vnd.pypi.simple.v1+json")
        else:
            body = "\n".join(["<!DOCTYPE html><html><body>", *self._anchors(entries)])
            self._send(200, f"{body}\n</body></html>\n".encode(), "text/html")

    def _anchors(self, entries: list[tuple[Wheel, str | None]]) -> Iterator[str]:
        for wheel, sha256 in entries:
            fragment = f"#sha256={sha256}" if sha256 else ""
            digest = hashlib.sha256(wheel.metadata).hexdigest()
            told = (
                f' data-dist-info-metadata="sha256={digest}" data-core-metadata="sha256={digest}"'
                if self.fake.metadata
                else ""
            )
            href = f"/files/{quote(wheel.filename)}{fragment}"
            yield f'<a href="{href}"{told}>{html.escape(wheel.filename)}</a><br/>'

    def _json(self, entries: list[tuple[Wheel, str | None]]) -> bytes:
        files = [
            {
                "filename": wheel.filename,
                "url": f"/files/{quote(wheel.filename)}",
                "hashes": {"sha256": sha256} if sha256 else {},
                "core-metadata": self.fake.metadata,
                **({"size": len(wheel.data)} if self.fake.sizes else {}),
            }
            for wheel, sha256 in entries
        ]
        page = {"meta": {"api-version": "1.1"}, "name": entries[0][0].project, "files": files}
        return json.dumps(page).encode()

    def _file(self, name: str, fault: Fault | None) -> None:
        wheel = self.fake.wheel(name)
        if wheel is None:
            self._send(404, b"no such file", "text/plain")
            return
        data = wheel.data[: len(wheel.data) // 2] if fault == Fault.CUT else wheel.data
        first, last = 0, len(data) - 1
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes="):
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            first = int(begin) if begin else max(0, len(data) - int(end))
            last = min(int(end), last) if begin and end else last
        if first >= len(data):
            self._send(416, b"", "text/plain")
            return
        part = data[first : last + 1]
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == Fault.TRUNCATED and not asked:
            self.wfile.write(part[: len(part) // 2])
            self.close_connection = True
            return
        self.wfile.write(part)

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="index"')
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
