"""Where the image that is to be published lies: an engine, an OCI layout, a registry.

All give the same value, so that pushing knows one kind of image. Nothing is built here, and nothing
is changed: a configuration goes out byte by byte as it was tested.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import docker.errors

from torchproof.errors import CellError, HostError, IntegrityError
from torchproof.model.digests import sha256_digest
from torchproof.registry import (
    DOCKER_MANIFEST_LIST,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    Reference,
    Registry,
)

CHUNK = 1 << 20
TESTED = "torchproof.tested"
"""Annotation: digest of the manifest that was tested, where this one only adds annotations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSource:
    """One layer. `open` starts its bytes from the beginning.

    `descriptor` is None for the plain tar of an engine, which is compressed on its way.
    """

    diff_id: str
    open: Callable[[], Iterator[bytes]]
    descriptor: Descriptor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that could be pushed. `manifest` is None where it has none before it is pushed."""

    config: bytes
    layers: tuple[LayerSource, ...]
    manifest: bytes | None = None
    media_type: str = OCI_MANIFEST

    @property
    def config_digest(self) -> str:
        """`sha256:…` of the configuration: the image's id in a Docker Engine."""
        return sha256_digest(self.config)

    @property
    def labels(self) -> dict[str, str]:
        """What the image says of itself."""
        return labels_of(self.config)

    def is_tested(self, digest: str) -> bool:
        """Tell whether a report's digest names this image."""
        return digest in self.names

    @property
    def names(self) -> frozenset[str]:
        """All digests that mean this image: of its configuration, its manifest, and the one that
        was tested before an annotation was added.
        """
        if self.manifest is None:
            return frozenset({self.config_digest})
        annotations = json.loads(self.manifest).get("annotations") or {}
        own = sha256_digest(self.manifest)
        return frozenset({self.config_digest, own, annotations.get(TESTED, own)})


def labels_of(config: bytes) -> dict[str, str]:
    """Return the labels of an image configuration; empty if it has none or is none."""
    try:
        labels = (json.loads(config).get("config") or {}).get("Labels") or {}
    except (ValueError, AttributeError):
        return {}
    return {str(name): str(value) for name, value in labels.items()}


@contextmanager
def find_image(ref: str, digest: str, scratch: Path) -> Iterator[Image]:
    """Open the image that a report names by `ref` and `digest`, wherever it lies.

    Raises `CellError` when it is there no more, or is another one now.
    """
    layout = Path(ref)
    if (layout / "oci-layout").is_file():
        yield from_layout(layout, digest)
        return
    remote = _remote(ref)
    if remote is not None:
        with Registry(remote.registry) as registry:
            found = from_registry(registry, remote.repository, digest)
            if found is not None:
                yield found
                return
    with _from_engine(digest, scratch) as image:
        yield image


def from_registry(registry: Registry, repository: str, target: str) -> Image | None:
    """Read an image of a registry by tag or digest; None if it is not there.

    An index stands for its only image, or for the one of linux/amd64.
    """
    found = registry.manifest(repository, target)
    if found is not None and found.media_type in (OCI_INDEX, DOCKER_MANIFEST_LIST):
        chosen = pick_platform(found.json())
        found = registry.manifest(repository, chosen) if chosen else None
    if found is None:
        return None

    def opener(digest: str) -> Callable[[], Iterator[bytes]]:
        return lambda: registry.read_blob(repository, digest)

    def read(digest: str) -> bytes:
        return b"".join(registry.read_blob(repository, digest))

    return _from_manifest(
        found.data, found.media_type, read, opener, where=f"{repository}@{target}"
    )


def pick_platform(index: dict[str, Any], platform: str = "linux/amd64") -> str | None:
    """Return the digest of an index's only image, or of the one for a platform."""
    images = [
        one
        for one in index.get("manifests") or []
        if (one.get("platform") or {}).get("os", "linux") != "unknown"
    ]
    if len(images) > 1:
        system, _, machine = platform.partition("/")
        images = [
            one
            for one in images
            if (one.get("platform") or {}).get("os") == system
            and (one.get("platform") or {}).get("architecture") == machine
        ]
    return str(images[0]["digest"]) if images else None


def _remote(ref: str) -> Reference | None:
    """Read a reference that says it lies in a registry: it has a digest."""
    host, _, rest = ref.partition("/")
    if "@sha256:" not in ref or not rest or not ("." in host or ":" in host or host == "localhost"):
        return None
    return Reference.parse(ref)


def from_layout(layout: Path, digest: str) -> Image:
    """Read an image of an OCI layout by its manifest's digest. Raises `CellError` if it lacks."""
    blobs = layout / "blobs/sha256"

    def path(name: str) -> Path:
        return blobs / name.removeprefix("sha256:")

    def read(name: str) -> bytes:
        try:
            data = path(name).read_bytes()
        except OSError as error:
            raise CellError(
                f"the layout lacks {name}", where=str(layout), fix="run the matrix again"
            ) from error
        if sha256_digest(data) != name:
            raise IntegrityError(f"{name} of the layout is not what it was", where=str(layout))
        return data

    def opener(name: str) -> Callable[[], Iterator[bytes]]:
        return lambda: _file_chunks(path(name))

    return _from_manifest(read(digest), OCI_MANIFEST, read, opener, where=str(layout))


def _from_manifest(
    data: bytes,
    media_type: str,
    read: Callable[[str], bytes],
    opener: Callable[[str], Callable[[], Iterator[bytes]]],
    *,
    where: str,
) -> Image:
    try:
        manifest = json.loads(data)
        config = read(Descriptor.from_json(manifest["config"], where=where).digest)
        layers = [Descriptor.from_json(one, where=where) for one in manifest["layers"]]
        diff_ids = json.loads(config)["rootfs"]["diff_ids"]
    except (ValueError, KeyError, TypeError) as error:
        raise CellError(f"this is no image: {error!r}", where=where) from error
    if len(diff_ids) != len(layers):
        raise IntegrityError(
            f"{len(layers)} layers, but the configuration names {len(diff_ids)}", where=where
        )
    sources = tuple(
        LayerSource(diff_id=diff_id, open=opener(layer.digest), descriptor=layer)
        for diff_id, layer in zip(diff_ids, layers, strict=True)
    )
    return Image(config=config, layers=sources, manifest=data, media_type=media_type)


@contextmanager
def _from_engine(digest: str, scratch: Path) -> Iterator[Image]:
    """Save an image of the Docker Engine (or of Podman, by its socket) to a file, and read that.

    The engine's own push would give the image a tag before its evidence is there.
    """
    try:
        engine = docker.from_env(timeout=600)
    except docker.errors.DockerException as error:
        raise HostError(f"no Docker Engine answers: {error}") from error
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=scratch, prefix="publish-") as folder:
            saved = Path(folder) / "image.tar"
            with saved.open("wb") as file:
                for chunk in engine.images.get(digest).save(chunk_size=CHUNK):
                    file.write(chunk)
            yield from_saved(saved, digest)
    except docker.errors.ImageNotFound as error:
        raise CellError(
            f"the engine has no image {digest}; publish never builds",
            fix="publish where it was built, or run the matrix here again",
        ) from error
    except docker.errors.APIError as error:
        raise HostError(f"the engine cannot save {digest}: {error.explanation}") from error
    finally:
        engine.close()


def from_saved(saved: Path, digest: str) -> Image:
    """Read the archive of `docker save`; old and new engines both write its manifest.json."""
    where = f"engine image {digest}"
    with tarfile.open(saved, "r:") as archive:
        members = {one.name: one for one in archive.getmembers()}
        try:
            described = json.loads(_member(archive, members["manifest.json"]))[0]
            config = _member(archive, members[described["Config"]])
            diff_ids = json.loads(config)["rootfs"]["diff_ids"]
            places = [_follow(members, name) for name in described["Layers"]]
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise HostError(f"the engine saved no image: {error!r}", where=where) from error
    layers = tuple(
        LayerSource(diff_id=diff_id, open=_slice(saved, place.offset_data, place.size))
        for diff_id, place in zip(diff_ids, places, strict=True)
    )
    return Image(config=config, layers=layers)


def _follow(members: dict[str, tarfile.TarInfo], name: str) -> tarfile.TarInfo:
    """Return a member; equal layers are links in the archives of old engines."""
    member = members[name]
    if not member.issym():
        return member
    parent = Path(name).parent
    return members[str(Path(*_normal((parent / member.linkname).parts)))]


def _normal(parts: tuple[str, ...]) -> list[str]:
    done: list[str] = []
    for part in parts:
        if part == ".." and done:
            done.pop()
        elif part not in ("..", "."):
            done.append(part)
    return done


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return file.read() if file else b""


def _slice(path: Path, offset: int, size: int) -> Callable[[], Iterator[bytes]]:
    return lambda: _file_chunks(path, offset, size)


def _file_chunks(path: Path, offset: int = 0, size: int | None = None) -> Iterator[bytes]:
    left = path.stat().st_size - offset if size is None else size
    with path.open("rb") as file:
        file.seek(offset)
        while left and (chunk := file.read(min(CHUNK, left))):
            left -= len(chunk)
            yield chunk
