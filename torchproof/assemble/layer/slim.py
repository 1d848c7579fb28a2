"""Slim layers: device code for GPUs that the image does not serve becomes zeros, in the stream.

The driver takes the best entry of each container (see `fatbin.py`). For each wanted GPU
keep the machine code with the largest architecture that is not above it and of its major version;
only if there is none, the newest PTX not above it. The payloads of the others become zeros, in
place, their headers stay, so that nothing else of the library moves; zeros compress away.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from torchproof.assemble.layer.fatbin import MAGIC, CodeKind, Container, Entry, containers
from torchproof.assemble.layer.spool import PIECE, Spool
from torchproof.errors import InputError

LEVEL: Final = 2
"""Of ISA-L, for files that are changed. Its levels 0 to 2 gave equal bytes on an AMD processor with
AVX2 and an Intel one with AVX-512; level 3 did not."""
COMPRESSION: Final = f"isal {LEVEL}"
"""Part of a slim layer's recipe."""
_HEADER: Final = struct.Struct("<IHHQ")
HELD: Final = 8 * 1024**2
"""Bytes of a container that are held in memory; a larger one goes through a temporary file."""
_FIRST_ENTRY: Final = struct.Struct("<HHIQ")
_ENTRY_HEADERS: Final = range(32, 1024)


def target_of(gpu: str) -> int:
    """Return the number of an architecture (`sm_90` → 90). Raise InputError if it is not one."""
    digits = gpu.removeprefix("sm_")
    if not gpu.startswith("sm_") or not digits.isdigit() or not 50 <= int(digits) < 1000:
        raise InputError(f"{gpu!r} is no GPU architecture", fix="write it as sm_90")
    return int(digits)


def serves(archs: Iterable[str], gpu: str) -> bool:
    """Tell whether code for these architectures (`sm_80`, `compute_90`) runs on a GPU."""
    target = target_of(gpu)
    for arch in archs:
        kind, _, digits = arch.partition("_")
        number = int("".join(char for char in digits if char.isdigit()) or 0)
        if kind == "sm" and number // 10 == target // 10 and number <= target:
            return True
        if kind == "compute" and number <= target:
            return True
    return False


def require_served(archs: tuple[str, ...], gpus: Iterable[str]) -> None:
    """Refuse to make an image for a GPU that its wheels have no code for.

    Raises InputError. Nothing is refused if the architectures are not known.
    """
    for gpu in gpus:
        if not serves(archs, gpu) and archs:
            raise InputError(
                f"these wheels have no device code for {gpu}; they have {', '.join(archs)}",
                where="gpus",
                fix="name a GPU that they serve, or choose another torch or CUDA",
            )
        target_of(gpu)


def kept(container: Container, targets: Iterable[int]) -> set[int]:
    """Return the indexes of the entries that the wanted GPUs need."""
    keep: set[int] = set()
    for index, entry in enumerate(container.entries):
        if entry.kind not in (CodeKind.PTX, CodeKind.SASS):
            keep.add(index)
    for target in targets:
        sass = _best(container.entries, CodeKind.SASS, target)
        keep |= sass or _best(container.entries, CodeKind.PTX, target)
    return keep


def _best(entries: tuple[Entry, ...], kind: CodeKind, target: int) -> set[int]:
    """Return the entries of a kind with the largest architecture that the target runs."""
    fitting = {
        index: entry.arch
        for index, entry in enumerate(entries)
        if entry.kind == kind
        and entry.arch <= target
        and (kind == CodeKind.PTX or entry.arch // 10 == target // 10)
    }
    newest = max(fitting.values(), default=0)
    return {index for index, arch in fitting.items() if arch == newest}


@dataclass(slots=True)
class PruneCounts:
    """What pruning did to one library. Bytes and numbers of entries."""

    containers: int = 0
    kept: int = 0
    zeroed: int = 0
    zeroed_bytes: int = 0
    untouched: list[str] = field(default_factory=list)
    """Places that look like containers and are not understood; they stay as they are."""


class Pruner:
    """Zeroes device code in a stream of a library's bytes; gives out as many as it takes."""

    def __init__(self, gpus: Iterable[str], *, size: int) -> None:
        self._targets = tuple(target_of(gpu) for gpu in gpus)
        self._left = size
        self._buffer = bytearray()
        self._spool: Spool | None = None
        self._position = 0
        self.counts = PruneCounts()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes, yield those that are decided."""
        self._buffer += data
        return self._drain(final=False)

    def finish(self) -> Iterator[bytes]:
        """Yield the rest."""
        return self._drain(final=True)

    def _drain(self, *, final: bool) -> Iterator[bytes]:
        while self._buffer:
            if self._spool is not None:
                yield from self._fill(self._spool)
                continue
            at = self._buffer.find(MAGIC)
            if at < 0:
                # The last bytes may be the beginning of a magic.
                yield from self._take(len(self._buffer) - (0 if final else len(MAGIC) - 1))
                break
            yield from self._take(at)
            if len(self._buffer) < self._telling() and not final:
                break
            needed = self._needed()
            if needed is None:
                yield from self._take(len(MAGIC))
            elif needed > HELD:
                self._spool = Spool(needed)
            elif len(self._buffer) < needed and not final:
                break
            else:
                yield from self._container(needed)

    def _telling(self) -> int:
        """Return how many bytes it takes to judge the magic at the front."""
        if len(self._buffer) < _HEADER.size:
            return _HEADER.size
        _, _, header, payload = _HEADER.unpack_from(self._buffer)
        return int(header + _FIRST_ENTRY.size if header + payload > HELD else _HEADER.size)

    def _needed(self) -> int | None:
        """Return the bytes of the container at the front, None if it is not one or too large."""
        if len(self._buffer) < _HEADER.size:
            return None
        _, version, header, payload = _HEADER.unpack_from(self._buffer)
        size = header + payload
        left = self._left - self._position
        if version != 1 or header < _HEADER.size or not payload or size > left:
            if version <= 16 and _HEADER.size <= header <= 256 and 0 < size <= left:
                self._note(f"container of version {version}")
            return None
        return int(size) if size <= HELD or self._begins(header, payload) else None

    def _begins(self, header: int, payload: int) -> bool:
        """Tell whether an entry follows: a magic by chance must not take the rest of a file."""
        if len(self._buffer) < header + _FIRST_ENTRY.size:
            return False
        _, _, entry_header, size = _FIRST_ENTRY.unpack_from(self._buffer, header)
        return entry_header in _ENTRY_HEADERS and entry_header + size <= payload

    def _fill(self, spool: Spool) -> Iterator[bytes]:
        """Move bytes to the container that waits; when it is whole, decide and yield it."""
        piece = self._buffer[: spool.missing]
        del self._buffer[: len(piece)]
        spool.add(piece)
        if spool.missing:
            return
        self._spool = None
        found = spool.container()
        if found is None:
            self._note("container whose entries do not parse")
        for part in spool.pieces(self._others(found) if found else ()):
            self._position += len(part)
            yield part

    def _container(self, size: int) -> Iterator[bytes]:
        found = next(containers(self._buffer, [(0, size)]), None)
        if found is not None and (found.offset, found.size) == (0, size):
            for start, end in self._others(found):
                self._buffer[start:end] = bytes(end - start)
        else:
            found = None
        if found is None:
            self._note("container whose entries do not parse")
        yield from self._take(size if found else len(MAGIC))

    def _others(self, container: Container) -> list[tuple[int, int]]:
        """Return the ranges (start, end) of the code that is not needed, and count."""
        keep = kept(container, self._targets)
        others = [entry for index, entry in enumerate(container.entries) if index not in keep]
        self.counts.containers += 1
        self.counts.kept += len(keep)
        self.counts.zeroed += len(others)
        self.counts.zeroed_bytes += sum(entry.size for entry in others)
        return [(entry.offset, entry.offset + entry.size) for entry in others]

    def _note(self, text: str) -> None:
        self.counts.untouched.append(f"{text} at byte {self._position}")

    def _take(self, size: int) -> Iterator[bytes]:
        """Yield bytes from the front, in pieces: a container can be larger than all else here."""
        size = max(0, size)
        for start in range(0, size, PIECE):
            yield bytes(self._buffer[start : min(start + PIECE, size)])
        del self._buffer[:size]
        self._position += size
