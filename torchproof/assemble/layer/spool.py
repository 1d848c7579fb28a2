"""A large container on its way through a temporary file: what must be seen whole, out of memory."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from torchproof.assemble.layer.fatbin import Container, containers
from torchproof.errors import HostError

PIECE: Final = 1 << 20


class Spool:
    """Takes `size` bytes, reads them as a container, and gives them back with ranges zeroed.

    Raises HostError if the disk of temporary files does not take them.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.missing = size
        """Bytes that are still to come."""
        with _disk():
            self._file = tempfile.TemporaryFile(prefix="torchproof-")  # noqa: SIM115

    def add(self, data: bytes | bytearray) -> None:
        """Take the next bytes."""
        with _disk():
            self._file.write(data)
        self.missing -= len(data)

    def container(self) -> Container | None:
        """Return the container that the bytes are from beginning to end, or None."""
        with _disk():
            self._file.flush()
            # Of the mapping only the pages with headers of entries are ever read.
            with mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_READ) as mapped:
                found = next(containers(mapped, [(0, self._size)]), None)
        return found if found and (found.offset, found.size) == (0, self._size) else None

    def pieces(self, zeroed: Sequence[tuple[int, int]] = ()) -> Iterator[bytes]:
        """Yield all bytes, those of the ranges (start, end; in order) as zeros; once."""
        position, waiting = 0, list(reversed(zeroed))
        with self._file as file:
            file.seek(0)
            while piece := bytearray(file.read(PIECE)):
                end = position + len(piece)
                while waiting and waiting[-1][0] < end:
                    start, stop = waiting[-1]
                    low, high = max(start, position) - position, min(stop, end) - position
                    piece[low:high] = bytes(high - low)
                    if stop > end:
                        break
                    waiting.pop()
                yield bytes(piece)
                position = end


@contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HostError(
            f"cannot write a temporary file in {tempfile.gettempdir()}: {error.strerror}",
            fix="free some space there, or set TMPDIR to another folder",
        ) from error
