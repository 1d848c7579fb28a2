"""The stored bytes of a layer → what it adds and what it removes. The one reader of layers.

A layer is read forward, once; nothing is unpacked into place. Whiteouts follow the OCI image
specification ("Whiteouts", "Opaque Whiteout").
"""

from __future__ import annotations

import io
import posixpath
import stat
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from torchproof.errors import HostError, IntegrityError
from torchproof.image.compression import CHUNK, Compression, decompressed

LARGEST_LAYER: Final = 256 << 30
"""Bytes unpacked above which a layer is taken for a bomb."""
_BLOCK: Final = 32 << 10
"""Bytes that `tarfile` buffers: it copies what is left of them for every header that it reads."""
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = f"{_WHITEOUT}{_WHITEOUT}.opq"


class LayerError(IntegrityError):
    """A layer that is not a whole, well-formed tar; `where` names it."""


class MemberKind(StrEnum):
    """What a path is. Devices, sockets and pipes are `OTHER`."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    HARD_LINK = "hard link"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One path that a layer adds: absolute, normalised, never the root itself.

    `mode` holds the permission bits, `size` is bytes of content. `target` is a symbolic link's
    text as it stands, or the path of a hard link's other name (empty if that climbs out). `pieces`
    starts the content, and can be used only until the next event is requested.
    """

    path: str
    kind: MemberKind
    mode: int
    uid: int
    gid: int
    size: int
    target: str
    pieces: Callable[[], Iterator[bytes]] = field(repr=False, compare=False)

    def read(self) -> bytes:
        """Return the content whole; raises LayerError if it ends too early."""
        return b"".join(self.pieces())


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A path of the layers below that this one removes, with all below it."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaqueDirectory:
    """A directory whose content in the layers below is removed; this layer's own stays."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClimbingName:
    """A member whose name, as the tar has it, climbs out of the root: not part of an image."""

    name: str

    def __str__(self) -> str:
        return f"{self.name!r} climbs out of the root of the image"


class LayerTar:
    """Reads one layer from its stored bytes, plain or compressed.

    `name` says in errors which layer it is. With `promised`, a layer that is compressed in another
    way is refused. Iterating raises LayerError if the layer is damaged, ends too early or is not a
    tar, and HostError if this machine cannot read it (no zstd, the disk is full).
    """

    def __init__(
        self, chunks: Iterable[bytes], name: str, *, promised: Compression | None = None
    ) -> None:
        self._chunks = chunks
        self._name = name
        self._promised = promised
        self._stream: ChunkReader | None = None

    @property
    def unpacked(self) -> int:
        """Bytes of the tar that were read so far."""
        return self._stream.count if self._stream else 0

    def __iter__(self) -> Iterator[Member | Removed | OpaqueDirectory | ClimbingName]:
        """Yield what the layer holds, in its order."""
        with self._faults():
            plain = decompressed(self._chunks, self._promised)
            self._stream = ChunkReader(plain, largest=LARGEST_LAYER)
            # The mode with "|" reads forward only; links and devices are never made.
            with tarfile.open(fileobj=self._stream, mode="r|", bufsize=_BLOCK) as archive:
                for info in archive:
                    event = self._event(archive, info)
                    if event is not None:
                        yield event
            while self._stream.read(CHUNK):
                pass  # Checksums and digests are known to be right only at the end of the bytes.

    def strictly(self) -> Iterator[Member | Removed | OpaqueDirectory]:
        """Yield like iterating, but raise LayerError for a name that climbs out."""
        for event in self:
            if isinstance(event, ClimbingName):
                raise LayerError(str(event), where=self._name)
            yield event

    def _event(
        self, archive: tarfile.TarFile, info: tarfile.TarInfo
    ) -> Member | Removed | OpaqueDirectory | ClimbingName | None:
        path = _inside(info.name)
        if path is None:
            return ClimbingName(name=info.name)
        folder, base = posixpath.split(path)
        if base == _OPAQUE:
            return OpaqueDirectory(path=folder)
        if base.startswith(_WHITEOUT):
            hidden = base.removeprefix(_WHITEOUT)
            if hidden in ("", ".", ".."):
                return None
            return Removed(path=posixpath.join(folder, hidden))
        return None if path == "/" else self._member(path, archive, info)

    def _member(self, path: str, archive: tarfile.TarFile, info: tarfile.TarInfo) -> Member:
        kind, target = MemberKind.OTHER, ""
        if info.isfile():
            kind = MemberKind.FILE
        elif info.isdir():
            kind = MemberKind.DIRECTORY
        elif info.issym():
            kind, target = MemberKind.SYMLINK, info.linkname
        elif info.islnk():
            kind, target = MemberKind.HARD_LINK, _inside(info.linkname) or ""
        return Member(
            path=path,
            kind=kind,
            mode=stat.S_IMODE(info.mode),
            uid=info.uid,
            gid=info.gid,
            size=info.size if kind is MemberKind.FILE else 0,
            target=target,
            pieces=partial(self._content, archive, info),
        )

    def _content(self, archive: tarfile.TarFile, info: tarfile.TarInfo) -> Iterator[bytes]:
        with self._faults():
            source = archive.extractfile(info) if info.isfile() else None
            while source is not None and (piece := source.read(CHUNK)):
                yield piece

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Turn what reading can raise into the errors that this class promises."""
        try:
            yield
        except struct.error as error:
            raise LayerError("layer ends too early", where=self._name) from error
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise LayerError(f"layer cannot be read: {error}", where=self._name) from error
        except OSError as error:
            raise HostError(f"cannot read a layer: {error}", where=self._name) from error


class ChunkReader(io.RawIOBase):
    """Pieces of bytes as a file that is read forward. `count` is how many bytes were read.

    Reading more than `largest` bytes raises ValueError.
    """

    def __init__(self, pieces: Iterable[bytes], *, largest: int) -> None:
        super().__init__()
        self._pieces = iter(pieces)
        self._largest = largest
        self._rest = memoryview(b"")
        self.count = 0

    def readable(self) -> bool:
        """Tell that this file can be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return as many bytes as asked for, or all that are left; fewer only at the end."""
        if size < 0:
            return self.readall()
        found: list[memoryview] = []
        while size:
            if not self._rest:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._rest = memoryview(piece)
            part, self._rest = self._rest[:size], self._rest[size:]
            found.append(part)
            size -= len(part)
        data = b"".join(found)
        self.count += len(data)
        if self.count > self._largest:
            raise ValueError(f"it unpacks to more than {self._largest} bytes")
        return data


def _inside(name: str) -> str | None:
    """Return the absolute path of a member; None if it climbs above the root."""
    parts: list[str] = []
    for part in name.split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            return None
        parts.append(part)
    return "/" + "/".join(parts)
