"""Programs that torchproof starts on this machine: run to completion, logged, stopped together.

`run_logged` is for programs that build (uv, a build client): their output goes to a log, and
`stop_all` stops those that other threads wait for, since Ctrl-C reaches only the main thread.

`run_command` is for probes: nothing that a command started outlives it. `torchrun` starts its
workers in sessions of their own, so killing a process group is not enough: every descendant
inherits a marker in its environment, by which it is found in /proc.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torchproof.errors import HostError

MARKER = "TORCHPROOF_RUN"
KEEP = 4 * 1024 * 1024
"""Bytes of each output stream that are kept: the end, where the reason is."""
GRACE = 2.0
"""Seconds that a process has after SIGABRT to write its stacks (faulthandler)."""
STOP_GRACE = 10.0
"""Seconds that a program has to clean up after SIGTERM."""
_running: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a command ended. `exit_code` is None if it timed out, `-n` if signal n killed it."""

    exit_code: int | None
    stdout: str
    stderr: str
    seconds: float


def run_command(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    cwd: Path | None = None,
) -> RunResult:
    """Run a command to its end, for at most `timeout` seconds; return the end of its output.

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


def run_logged(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, title: str
) -> tuple[int, str]:
    """Run a program to its end, appending its output to a log; return exit code and output.

    `title` is what the log shows instead of the command, which may contain paths of secrets. Raises
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
    """Stop every running program; the threads that wait for one get its exit code."""
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
        process.wait(STOP_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
