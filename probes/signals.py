"""SIGTERM reaches the training process, so that it can save a checkpoint before the end."""

# /// probe
# summary = "SIGTERM reaches the training process through PID 1; orphans are reaped"
# timeout = 60
# ///

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import _support as support

IN_IMAGE = os.environ.get("TORCHPROOF_SUBJECT") == "image"
WAIT = 3.0
CHILD = """
import signal, sys, time
def save(number, frame):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
for _ in range(600):  # a signal just before a long sleep would be handled after it
    time.sleep(0.1)
"""


def check():
    inherited()
    child()
    if not IN_IMAGE:
        return "SIGTERM is not blocked, and a Python process handles it"
    first = command(1)
    through_init(first)
    reaping(first)
    return f"SIGTERM to PID 1 ({first}) reaches the process; orphans are reaped"


def inherited():
    """A launcher can leave SIGTERM ignored or blocked for everything below it."""
    bit = 1 << (signal.SIGTERM - 1)
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("SigIgn", "SigBlk") and int(value, 16) & bit:
            word = "ignored" if name == "SigIgn" else "blocked"
            support.fail(
                "sigterm_ignored",
                f"SIGTERM is {word} before the first line of Python runs",
                "the launcher or entrypoint does that (trap '' TERM): remove it",
            )


def child():
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    try:
        process.stdout.readline()
        process.terminate()
        said, _ = process.communicate(timeout=WAIT * 3)
    except subprocess.TimeoutExpired:
        said = ""
    finally:
        process.kill()
    if "saved" not in said:
        support.fail("sigterm_lost", "a Python process did not receive SIGTERM from its parent")


def through_init(first):
    """What `docker stop` and Kubernetes do: SIGTERM to PID 1."""
    got = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    try:
        os.kill(1, signal.SIGTERM)
        end = time.monotonic() + WAIT
        while not got and time.monotonic() < end:
            time.sleep(0.05)
    except PermissionError:
        support.fail("pid1_of_other_user", f"PID 1 ({first}) belongs to another user")
    finally:
        signal.signal(signal.SIGTERM, before)
    if not got:
        support.fail(
            "sigterm_lost",
            f"PID 1 is `{first}`, which does not pass SIGTERM on to the training process",
            'use exec form (ENTRYPOINT ["..."], `exec "$@"` in scripts), and --init or tini',
        )


def reaping(first):
    """An orphan that has ended must not remain as a zombie."""
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        orphan = os.fork()
        if orphan:
            os.write(writer, str(orphan).encode())
        else:
            time.sleep(0.3)
        os._exit(0)
    os.waitpid(middle, 0)
    orphan = int(os.read(reader, 32))
    end = time.monotonic() + WAIT
    while Path(f"/proc/{orphan}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    if os.getpid() == 1 and Path(f"/proc/{orphan}").exists():
        support.METRICS["reaps"] = False
        return
    if Path(f"/proc/{orphan}").exists():
        support.fail(
            "zombies",
            f"PID 1 is `{first}`, which does not reap orphans: zombies fill the process table",
            "start containers with --init, or put tini into the image",
        )


def command(pid):
    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    return words.decode(errors="replace").strip()[:80] or f"pid {pid}"


if __name__ == "__main__":
    support.main(check)
