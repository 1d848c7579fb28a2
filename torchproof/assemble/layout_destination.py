"""An OCI image layout on disk, which skopeo, Podman and (with manifest.json) Docker's load read."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchproof.assemble.destination import OpenSource
from torchproof.assemble.layer import tar_headers as tarball
from torchproof.assemble.layer_facts import write_whole
from torchproof.errors import HostError, IntegrityError
from torchproof.model.digests import sha256_digest
from torchproof.registry import OCI_INDEX, OCI_MANIFEST, Descriptor

_LAYOUT = b'{"imageLayoutVersion": "1.0.0"}'
_REF_NAME = "org.opencontainers.image.ref.name"
_DRAFT = "draft-"


class LayoutDestination:
    """A folder in OCI image layout 1.0. Blobs get their name only when they are whole and right.

    `name` is the image's name in it, as `docker load` shows it. Several images can share a folder.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._blobs = folder / "blobs" / "sha256"
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._written = 0
        try:
            self._blobs.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(self._blobs)
        except OSError as error:
            raise _full(folder, error) from error

    @property
    def ref(self) -> str:
        """Path of the folder."""
        return str(self._folder)

    @property
    def written_bytes(self) -> int:
        """Bytes of blobs written."""
        return self._written

    def current(self) -> str | None:
        """Return the digest that the name has in index.json, if all its blobs are there."""
        for one in self._index()["manifests"]:
            if one.get("annotations", {}).get(_REF_NAME) == self._name:
                return self._whole(one["digest"])
        return None

    def has(self, digest: str, size: int) -> bool:
        """Look for a blob of that size."""
        return _size(self._path(digest)) == size

    def write(
        self, source: OpenSource, *, digest: str | None = None, size: int | None = None
    ) -> tuple[str, int]:
        """Write a blob to a draft, and name it by what was written."""
        hasher = hashlib.sha256()
        count = 0
        handle, draft = tempfile.mkstemp(prefix=f"{_DRAFT}{os.getpid()}-", dir=self._blobs)
        try:
            with os.fdopen(handle, "wb", buffering=0) as file:
                for chunk in source():
                    if self._stop.is_set():
                        raise HostError("stopped while writing a layer")
                    hasher.update(chunk)
                    _write_all(file.fileno(), chunk)
                    count += len(chunk)
            found = f"sha256:{hasher.hexdigest()}"
            if digest not in (None, found) or size not in (None, count):
                raise IntegrityError(
                    f"a layer has digest {found} and {count} bytes; recorded are {digest} and "
                    f"{size} bytes",
                    fix="delete the recorded layer facts (layers.yaml, the cache), build again",
                )
            Path(draft).chmod(0o644)
            Path(draft).replace(self._path(found))
        except OSError as error:
            raise _full(self._folder, error) from error
        finally:
            Path(draft).unlink(missing_ok=True)
        with self._lock:
            self._written += count
        return found, count

    def finish(self, manifest: bytes, config_digest: str, layers: tuple[str, ...]) -> str:
        """Write the manifest, then index.json and Docker's manifest.json, each whole."""
        digest, size = self.write(lambda: iter((manifest,)), digest=sha256_digest(manifest))
        entry = Descriptor(
            media_type=OCI_MANIFEST,
            digest=digest,
            size=size,
            annotations={_REF_NAME: self._name, "io.containerd.image.name": self._name},
        ).as_json()
        index = self._index()
        others = [
            one
            for one in index["manifests"]
            if one.get("annotations", {}).get(_REF_NAME) != self._name
        ]
        index["manifests"] = [*others, entry]
        write_whole(self._folder / "oci-layout", _LAYOUT)
        write_whole(self._folder / "manifest.json", self._docker(config_digest, layers))
        write_whole(self._folder / "index.json", json.dumps(index, indent=1).encode())
        return digest

    def stop(self) -> None:
        """Make running writes end soon."""
        self._stop.set()

    def _docker(self, config_digest: str, layers: tuple[str, ...]) -> bytes:
        """Return manifest.json (Docker image specification 1.2), for engines without OCI load."""
        path = self._folder / "manifest.json"
        entries: list[dict[str, Any]] = _read_json(path, []) if path.is_file() else []
        entries = [one for one in entries if self._name not in one.get("RepoTags", ())]
        entries.append(
            {
                "Config": _inside(config_digest),
                "RepoTags": [self._name],
                "Layers": [_inside(layer) for layer in layers],
            }
        )
        return json.dumps(entries, indent=1).encode()

    def _index(self) -> dict[str, Any]:
        empty = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}
        found: dict[str, Any] = _read_json(self._folder / "index.json", empty)
        return found

    def _whole(self, digest: str) -> str | None:
        manifest: dict[str, Any] = _read_json(self._path(digest), {})
        parts = [manifest.get("config") or {}, *(manifest.get("layers") or ())]
        there = all(
            one.get("digest") and _size(self._path(one["digest"])) == one.get("size")
            for one in parts
        )
        return digest if there else None

    def _path(self, digest: str) -> Path:
        return self._blobs / digest.removeprefix("sha256:")


def as_tar(folder: Path) -> Iterator[bytes]:
    """Yield a layout as a tar, for `docker load`; one image's blobs if it holds one image."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith((_DRAFT, ".")):
            size = path.stat().st_size
            yield tarball.file_header(str(path.relative_to(folder)), size, 0o644)
            yield from file_chunks(path)
            yield tarball.padding(size)
    yield tarball.END


def file_chunks(path: Path) -> Iterator[bytes]:
    """Yield a file in pieces of a mebibyte."""
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(1 << 20):
            yield chunk


def _remove_abandoned(folder: Path) -> None:
    """Remove the drafts of builds that were killed."""
    for draft in folder.glob(f"{_DRAFT}*"):
        pid = draft.name.split("-")[1]
        if not Path(f"/proc/{pid}").exists():
            draft.unlink(missing_ok=True)


def _inside(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _read_json(path: Path, default: Any) -> Any:
    """Read JSON that an earlier build wrote; a damaged or missing file counts as the default."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return default


def _full(folder: Path, error: OSError) -> HostError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HostError(
            f"the disk is full: {folder}",
            fix="free some space and run again; whole layers are kept",
        )
    return HostError(f"cannot write to {folder}: {error.strerror or error}")
