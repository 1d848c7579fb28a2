"""What the probe scripts share: the protocol with the runner. Standard library only, Python 3.9+.

A script ends by exit code 0 (pass), 1 (fail) or 77 (skip) and prints one JSON object on standard
output, {"code": ..., "message": ..., "fix": ..., "metrics": {...}}; everything else goes to
standard error.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import re
import signal
import sys
import time
import traceback
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
# Last on the path: a probe called `deepspeed.py` must not hide the package of that name.
sys.path[:] = [entry for entry in sys.path if entry not in ("", HERE)] + [HERE]

PASS, FAIL, SKIP = 0, 1, 77
STARTED = time.monotonic()
TIMEOUT = float(os.environ.get("TORCHPROOF_TIMEOUT", "120"))
EXPECTED = json.loads(os.environ.get("TORCHPROOF_LOCK") or "{}")
"""What the lock says: torch, cuda, cudnn, nccl, triton, python, archs, driver_floor, prefix."""
THRESHOLDS = json.loads(os.environ.get("TORCHPROOF_THRESHOLDS") or "{}")
RANKS_PER_GPU = int(os.environ.get("TORCHPROOF_RANKS_PER_GPU") or "1")
METRICS: dict = {}


class End(Exception):
    """Ends the probe with its answer."""

    def __init__(self, status, code, message, fix="", **metrics):
        super().__init__(message)
        self.status, self.code, self.message, self.fix = status, code, message, fix
        METRICS.update(metrics)


def fail(code, message, fix="", **metrics):
    raise End(FAIL, code, message, fix, **metrics)


def skip(code, message, fix="", **metrics):
    raise End(SKIP, code, message, fix, **metrics)


def remaining():
    """Seconds until the runner ends this script, less what it takes to report."""
    return max(1.0, TIMEOUT - (time.monotonic() - STARTED) - min(10.0, TIMEOUT / 4))


def import_torch():
    """Import torch, noting how long that took."""
    begin = time.monotonic()
    import torch

    METRICS.setdefault("import_torch_seconds", round(time.monotonic() - begin, 3))
    return torch


def main(check):
    """Run a check and report. `check` returns the message of a pass, or raises End."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # Stacks of a hang are in the log before the runner's hard end.
    faulthandler.dump_traceback_later(max(1.0, TIMEOUT - min(3.0, TIMEOUT / 4)))
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        message = check() or ""
        status, result = PASS, {"code": "ok", "message": message, "fix": ""}
    except End as end:
        status = end.status
        result = {"code": end.code, "message": end.message, "fix": end.fix}
    except BaseException as error:
        traceback.print_exc()
        text = str(error).strip() or repr(error)
        status = FAIL
        result = {"code": "exception", "message": f"{type(error).__name__}: {text}", "fix": ""}
    METRICS["script_seconds"] = round(time.monotonic() - STARTED, 3)
    result["metrics"] = METRICS
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(OSError):
        os.write(answer, (json.dumps(result, default=str) + "\n").encode())
    # No exit handlers: a destructor that hangs must not turn an answer into a timeout.
    os._exit(status)


def mapped_libraries(pattern):
    """Paths of the files mapped into this process whose names match, sorted."""
    found = set()
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and re.search(pattern, Path(fields[5]).name):
            found.add(fields[5])
    return sorted(found)


def short(path):
    """A path as reports show it: relative to the environment if it is inside."""
    prefix = os.path.realpath(sys.prefix) + os.sep
    for spelling in (path, os.path.realpath(path)):
        if spelling.startswith((prefix, sys.prefix + os.sep)):
            return os.path.relpath(spelling, prefix if spelling.startswith(prefix) else sys.prefix)
    return path


def nccl_version():
    """Version of the NCCL library actually in use ("2.27.5"), or None.

    torch.cuda.nccl.version() is the version torch was compiled with, not the one loaded. A
    preloaded library comes first in the process's own scope, as it does for torch.
    """
    mapped = mapped_libraries(r"^libnccl\.so")
    if not mapped:
        return None
    number = ctypes.c_int()
    scope = ctypes.CDLL(None)
    library = scope if hasattr(scope, "ncclGetVersion") else ctypes.CDLL(mapped[0])
    if library.ncclGetVersion(ctypes.byref(number)) != 0:
        return None
    value = number.value
    if value < 10000:
        return f"{value // 1000}.{value % 1000 // 100}.{value % 100}"
    return f"{value // 10000}.{value % 10000 // 100}.{value % 100}"


def cudnn_version(path=None):
    """Version of the cuDNN library actually mapped ("9.10.2"), or None."""
    path = path or next(iter(mapped_libraries(r"^libcudnn\.so")), None)
    if path is None:
        return None
    ask = ctypes.CDLL(path).cudnnGetVersion
    ask.restype = ctypes.c_size_t
    value = ask()
    if value < 90000:
        return f"{value // 1000}.{value % 1000 // 100}.{value % 100}"
    return f"{value // 10000}.{value % 10000 // 100}.{value % 100}"
