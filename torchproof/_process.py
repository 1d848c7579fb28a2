"""Run one command on this machine with a hard end: nothing that it started outlives it.

`torchrun` starts its workers in sessions of their own, so killing a process group is not enough:
every descendant inherits a marker in its environment, and the marker finds it in /proc.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from torchproof.engines.engine import RunResult
from torchproof.errors import HostError

MARKER = "TORCHPROOF_RUN"
KEEP = 4 * 1024 * 1024
"""Bytes of each output stream that are kept: the end, where the reason stands."""
GRACE = 2.0
"""Seconds that a process has after SIGABRT to write its stacks (faulthandler)."""


def run_command(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    cwd: Path | None = None,
) -> RunResult:
    """Run a command to its end or to `timeout` seconds; returns its last output.

    The environment is exactly `env`. Raises HostError if the command cannot be started.
    """
    marker = uuid.uuid4().hex
    started = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                list(command),
                env={**env, MARKER: marker, "PYTHONFAULTHANDLER": "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(f"cannot start {command[0]}: {error.strerror}") from None
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
            process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
        finally:
            _kill_all(process, marker)
        return RunResult(
            exit_code=code,
            stdout=_tail(out),
            stderr=_tail(err),
            seconds=time.monotonic() - started,
        )


def _kill_all(process: subprocess.Popen[bytes], marker: str) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    needle = f"{MARKER}={marker}".encode()
    for _ in range(20):
        left = [pid for pid in _processes() if needle in _environment(pid)]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _processes() -> list[int]:
    try:
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return []


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _tail(stream: IO[bytes]) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - KEEP))
    return stream.read().decode(errors="replace")
