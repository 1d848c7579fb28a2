"""A layer as a stream: `tar.gz` bytes made while they are read, never whole in memory.

The members of wheels go through as they are: their deflate bytes become the body of a gzip
member. They are inflated only to learn `diff_id` (the sha256 of the tar), to check their CRC, and
where a file's content matters; a layer whose facts are known needs none of that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from isal import isal_zlib

from torchproof.assemble.layer import gzip_members as gzipped
from torchproof.assemble.layer import tar_headers as tarball
from torchproof.assemble.layer.installation import Installation, Installed, record, record_hash
from torchproof.assemble.layer.slim import LEVEL
from torchproof.assemble.layer.wheel_file import DEFLATED, Member
from torchproof.assemble.layer.wheel_reader import (
    CHUNK,
    SENT,
    SMALL,
    Check,
    Inflater,
    Sequential,
    unpacked,
)


class Transform(Protocol):
    """Changes a file's content in the stream without changing its size (`slim.Pruner`)."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes, yield those that are ready."""
        ...

    def finish(self) -> Iterator[bytes]:
        """Yield the rest."""
        ...


Chooser = Callable[[Installed], Transform | None]
"""Which files to change, and how; None leaves a file alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A path of a layer that comes from no wheel: folder, link, or small file."""

    header: bytes
    data: bytes = b""


class LayerStream:
    """The bytes of one layer. `diff_id` is there once `chunks` has run to its end with `hashing`.

    `known` are folders that `entries` make. `wheels` are (installation, sha256 of the wheel file);
    with `hashing`, a wheel is read whole and checked against its sha256, unless that is None: it
    has been checked. Raises IntegrityError for
    any byte that is not what a wheel promises.
    """

    def __init__(
        self,
        *,
        entries: Sequence[Entry] = (),
        wheels: Sequence[tuple[Installation, str | None]] = (),
        known: Iterable[str] = (),
        choose: Chooser | None = None,
        hashing: bool = True,
    ) -> None:
        self._entries = entries
        self._wheels = wheels
        self._known = frozenset(known)
        self._choose = choose
        # Content is needed for pruning, and for RECORD lines that the wheel does not give.
        complete = all(one.rows_complete for one, _ in wheels)
        self._hashing = hashing or choose is not None or not complete
        self._tar = hashlib.sha256()
        self._literal: list[bytes] = []
        self._done = False

    @property
    def diff_id(self) -> str | None:
        """`sha256:…` of the tar, or None if it is not known (yet)."""
        return f"sha256:{self._tar.hexdigest()}" if self._done and self._hashing else None

    @property
    def known_diff_id(self) -> str:
        """`sha256:…` of the tar of a stream that has run to its end with `hashing`."""
        diff_id = self.diff_id
        if diff_id is None:
            raise AssertionError("the layer has not been written whole")
        return diff_id

    def chunks(self) -> Iterator[bytes]:
        """Yield the layer from its beginning, in pieces of about a mebibyte."""
        self._tar, self._done = hashlib.sha256(), False
        self._literal = []
        yield from _joined(self._all())
        self._done = True

    def _all(self) -> Iterator[bytes]:
        for entry in self._entries:
            self._write(entry.header + entry.data + tarball.padding(len(entry.data)))
        folders = set(self._known)
        overridden = _overridden([installation for installation, _ in self._wheels])
        for installation, sha256 in self._wheels:
            yield from self._wheel(installation, sha256, folders, overridden)
        self._write(tarball.END)
        yield from self._flush()

    def _wheel(
        self,
        installation: Installation,
        sha256: str | None,
        folders: set[str],
        overridden: set[tuple[str, str]],
    ) -> Iterator[bytes]:
        wheel = installation.wheel
        rows: list[tuple[str, str, str]] = []
        step = CHUNK if self._hashing else SENT
        with Sequential(wheel, hashing=self._hashing and sha256 is not None, step=step) as reader:
            for file in installation.files:
                row = file.row
                if (wheel.path.name, file.path) not in overridden:
                    self._folders(file.path, folders)
                    digest = yield from self._file(file, reader)
                    if digest is not None:
                        row = (row[0], digest, str(file.member.size if file.member else 0))
                rows.append(row)
            if self._hashing and sha256 is not None:
                reader.verify(sha256)
        own = rows[-1][0].rpartition("/")[0] + "/RECORD"
        data = record(rows, own)
        self._write(tarball.file_header(installation.record_path, len(data), 0o644))
        self._write(data + tarball.padding(len(data)))

    def _file(self, file: Installed, reader: Sequential) -> Generator[bytes, None, str | None]:
        """Yield one file; return its new RECORD hash if the wheel's does not hold."""
        size = file.member.size if file.member else len(file.data)
        self._write(tarball.file_header(file.path, size, file.mode))
        digest: str | None = None
        if file.member is None:
            self._write(file.data)
        elif size:
            yield from self._flush()
            transform = self._choose(file) if self._choose else None
            if transform is not None:
                digest = yield from self._changed(file.member, reader, transform)
            else:
                digest = yield from self._verbatim(file.member, reader, file.row[1] == "")
        self._write(tarball.padding(size))
        return digest

    def _verbatim(
        self, member: Member, reader: Sequential, want_hash: bool
    ) -> Generator[bytes, None, str | None]:
        yield gzipped.HEADER
        packed = reader.packed(member)
        hasher = hashlib.sha256() if want_hash else None
        source: Iterable[bytes]
        if member.size <= SMALL and member.packed <= SMALL:
            source = (b"".join(packed),)
            if self._hashing:
                content = unpacked(member, source, reader.where)
                self._tar.update(content)
                if hasher:
                    hasher.update(content)
        elif self._hashing:
            check = Check(member, reader.where)
            inflater = Inflater(member, reader.where)

            def watched() -> Iterator[bytes]:
                for piece in packed:
                    for content in inflater.feed(piece):
                        check.feed(content)
                        self._tar.update(content)
                        if hasher:
                            hasher.update(content)
                    yield piece
                inflater.finish()
                check.finish()

            source = watched()
        else:
            source = packed
        yield from source if member.method == DEFLATED else gzipped.stored(iter(source))
        yield gzipped.trailer(member.crc, member.size)
        return record_hash(hasher.digest()) if hasher else None

    def _changed(
        self, member: Member, reader: Sequential, transform: Transform
    ) -> Generator[bytes, None, str]:
        check = Check(member, reader.where)
        inflater = Inflater(member, reader.where)
        deflater = isal_zlib.compressobj(level=LEVEL, wbits=-15)
        hasher, crc = hashlib.sha256(), 0

        def contents() -> Iterator[bytes]:
            for piece in reader.packed(member):
                for content in inflater.feed(piece):
                    check.feed(content)
                    yield from transform.feed(content)
            inflater.finish()
            check.finish()
            yield from transform.finish()

        yield gzipped.HEADER
        for changed in contents():
            hasher.update(changed)
            self._tar.update(changed)
            crc = isal_zlib.crc32(changed, crc)
            yield deflater.compress(changed)
        yield deflater.flush()
        yield gzipped.trailer(crc, member.size)
        return record_hash(hasher.digest())

    def _folders(self, path: str, known: set[str]) -> None:
        """Write the folders above a file that this layer has not had yet, outermost first."""
        parent = path.rpartition("/")[0]
        if parent and parent not in known:
            self._folders(parent, known)
            known.add(parent)
            self._write(tarball.directory_header(parent))

    def _write(self, data: bytes) -> None:
        """Add bytes of ours to the tar; they are held back until the next member of a wheel."""
        self._literal.append(data)

    def _flush(self) -> Iterator[bytes]:
        data = b"".join(self._literal)
        self._literal = []
        if data:
            self._tar.update(data)
            yield gzipped.member(data)


def _overridden(installations: Sequence[Installation]) -> set[tuple[str, str]]:
    """Find files that a later wheel of the same layer replaces, as (wheel name, path)."""
    owner: dict[str, str] = {}
    lost: set[tuple[str, str]] = set()
    for one in installations:
        for file in one.files:
            if file.path in owner:
                lost.add((owner[file.path], file.path))
            owner[file.path] = one.wheel.path.name
    return lost


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join small pieces, so that each costs little to hash and send; large ones go as they are."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        large = len(piece) >= SENT // 2
        if waiting and (large or size >= SENT):
            yield b"".join(waiting)
            waiting, size = [], 0
        if large:
            yield piece
        else:
            waiting.append(piece)
            size += len(piece)
    if waiting:
        yield b"".join(waiting)
