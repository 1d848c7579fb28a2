"""One at a time for each key: cells that are built side by side make a common layer once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class KeyLocks:
    """Locks by key. Whoever waited finds what the one before has made."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Wait until nobody else is at this key, and keep others from it."""
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            yield
