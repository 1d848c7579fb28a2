"""One at a time for each key: cells that are built side by side make a common layer once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class KeyLocks:
    """Locks by key. A thread that waited finds what the previous holder made."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Wait until no other thread holds this key, and hold it."""
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            yield
