"""Programs that engines start (uv, a build client): logged, and stopped together.

Builds run in threads, but Ctrl-C reaches only the main one: it calls `stop_all`.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchproof.errors import HostError

_GRACE = 10.0
"""Seconds that a program has to clean up after SIGTERM."""
_running: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()


def run_logged(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, title: str
) -> tuple[int, str]:
    """Run a program to its end, adding what it says to a log; return exit code and that text.

    `title` is what the log shows instead of the command, which may name secrets' places. Raises
    HostError if the program cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        output.write(f"$ {title}\n".encode())
        output.flush()
        begin = output.tell()
        with _lock:
            try:
                process = subprocess.Popen(
                    list(command),
                    env=dict(env),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise HostError(f"cannot start {command[0]}: {error.strerror}") from None
            _running.add(process)
        try:
            code = process.wait()
        finally:
            _stop(process)
            with _lock:
                _running.discard(process)
    with log.open("rb") as output:
        output.seek(begin)
        return code, output.read().decode(errors="replace")


def stop_all() -> None:
    """Stop what runs now; the threads that wait for it go on with its exit code."""
    with _lock:
        running = list(_running)
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    for process in running:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
