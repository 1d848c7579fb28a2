"""GPU leases between processes of one machine: a file lock a GPU, freed by the kernel on death.

`flock` locks die with their holder, so a killed worker gives its lease back by itself. A probe
that needs several GPUs takes all of them or none, in one order, so that two can never wait for
each other.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from torchproof.errors import HostError

FOLDER_VARIABLE = "TORCHPROOF_LEASES"


def lease_folder() -> Path:
    """Where the lock files are: shared by all runs of one user on one machine."""
    configured = os.environ.get(FOLDER_VARIABLE)
    if configured:
        return Path(configured)
    try:
        owner = getpass.getuser()
    except (KeyError, OSError):
        owner = str(os.getuid())
    return Path(tempfile.gettempdir()) / f"torchproof-gpu-leases-{owner}"


@contextlib.contextmanager
def lease(
    gpus: Sequence[str],
    count: int,
    *,
    folder: Path | None = None,
    timeout: float = 3600.0,
    poll: float = 0.1,
) -> Iterator[tuple[str, ...]]:
    """Hold `count` of these GPUs (UUIDs or indexes); yields which. Waits until that many are free.

    Raises HostError when the machine has fewer, or when `timeout` seconds have passed.
    """
    if count > len(gpus):
        raise HostError(f"{count} GPUs are needed; this host has {len(gpus)}")
    if count == 0:
        yield ()
        return
    folder = folder or lease_folder()
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout
    # The queue is itself a lock: who waits for many GPUs is not starved by those who want one.
    queue = FileLock(folder / "queue.lock")
    try:
        with queue.acquire(timeout=timeout, poll_interval=poll):
            held = _take(gpus, count, folder, deadline, poll)
    except Timeout:
        raise _too_long(count, timeout) from None
    if held is None:
        raise _too_long(count, timeout)
    try:
        yield tuple(held)
    finally:
        for lock in held.values():
            lock.release()


def _take(
    gpus: Sequence[str], count: int, folder: Path, deadline: float, poll: float
) -> dict[str, FileLock] | None:
    held: dict[str, FileLock] = {}
    while True:
        for gpu in gpus:
            if gpu in held or len(held) == count:
                continue
            lock = FileLock(folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', gpu)}.lock")
            with contextlib.suppress(Timeout):
                lock.acquire(blocking=False)
                held[gpu] = lock
        if len(held) == count:
            return held
        if time.monotonic() > deadline:
            for lock in held.values():
                lock.release()
            return None
        time.sleep(poll)


def _too_long(count: int, timeout: float) -> HostError:
    return HostError(
        f"no {count} GPUs came free within {timeout:.0f} s",
        fix="another run holds them; wait for it, or run fewer workers (-n)",
    )
