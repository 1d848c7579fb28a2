"""torchrun: the one on PATH belongs to the image's Python and launches."""

# /// probe
# summary = "torchrun on PATH belongs to the image's Python and launches two processes"
# timeout = 240
# ///

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import _support as support

WORKER = """
import json, os, sys
import torch
import torch.distributed as dist
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as answer:
    json.dump([sys.executable, sys.prefix, torch.__file__, value.item()], answer)
os._exit(0)  # gloo's own shutdown may wait forever for a rank that has already exited
"""


def check():
    found = shutil.which("torchrun")
    if found is None:
        support.fail(
            "torchrun_missing",
            f"no torchrun on PATH ({os.environ.get('PATH', '')})",
            f"put {Path(sys.executable).parent} on PATH, or use `python -m torch.distributed.run`",
        )
    interpreter = shebang(Path(found))
    support.METRICS.update(torchrun=found, interpreter=interpreter)
    if interpreter is not None and not same_python(interpreter):
        support.fail(
            "wrong_shebang",
            f"`torchrun` is {found} (#!{interpreter}), and the image's Python is "
            f"{sys.executable}: workers will not see its packages",
            "remove the other torchrun, put the environment's bin first on PATH, or use "
            "`python -m torch.distributed.run`",
        )
    with tempfile.TemporaryDirectory() as folder:
        answers = launch(found, Path(folder))
    if [answer[3] for answer in answers] != [3.0, 3.0]:
        support.fail("wrong_sum", f"two workers summed 1 and 2 to {[a[3] for a in answers]}")
    for executable, prefix, torch_file, _ in answers:
        if prefix != sys.prefix:
            support.fail(
                "wrong_interpreter",
                f"torchrun started its workers with {executable} ({torch_file}), not with "
                f"{sys.executable}",
                "use `python -m torch.distributed.run`",
            )
    return f"{found} launched two processes of {sys.executable}"


def launch(torchrun, folder):
    worker = folder / "worker.py"
    worker.write_text(WORKER)
    command = [torchrun, "--standalone", "--nproc-per-node=2", str(worker), str(folder)]
    limit = support.remaining()
    output = folder / "output"
    try:
        with output.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    except OSError as error:
        support.fail(
            "torchrun_broken",
            f"{torchrun} cannot be started: {error.strerror}; its first line names "
            f"{shebang(Path(torchrun))}",
            "reinstall torch in this environment; it was moved or copied after installing",
        )
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        # Its agent passes SIGTERM on to the workers, which are in sessions of their own.
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        print(tail(output), file=sys.stderr)
        support.fail(
            "hang",
            f"torchrun --standalone did not end within {limit:.0f} s",
            "does the hostname resolve (probe `rendezvous`)? try --local-addr=127.0.0.1",
        )
    text = tail(output)
    print(text, file=sys.stderr)
    if code != 0:
        support.fail("torchrun_failed", f"torchrun ended with exit code {code}: {reason(text)}")
    try:
        return [json.loads((folder / str(rank)).read_text()) for rank in range(2)]
    except OSError:
        support.fail("torchrun_lost_workers", "torchrun ended with 0, but not both workers ran")


def shebang(path):
    """The interpreter in a script's first line, or None for a program that is not a script."""
    with path.open("rb") as stream:
        first = stream.readline(512)
        second = stream.readline(512)
    if not first.startswith(b"#!"):
        return None
    words = first[2:].decode(errors="replace").split()
    if words[:1] == ["/bin/sh"] and b"exec" in second:
        # Installers write `#!/bin/sh` and `'''exec' PYTHON "$0"` where the path is long.
        words = second.decode(errors="replace").replace("'''exec'", "").strip(" '\"\n").split('"')
        words = [words[0].strip("' ")] if words else []
    if words and Path(words[0]).name == "env":
        name = next((word for word in words[1:] if not word.startswith("-")), "python")
        return shutil.which(name) or name
    return words[0] if words else ""


def same_python(interpreter):
    """Whether an interpreter is this one: the same environment, not only the same binary."""
    here = Path(sys.executable)
    there = Path(interpreter)
    if there == here:
        return True
    try:
        asked = subprocess.run(
            [interpreter, "-c", "import sys; print(sys.prefix)"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return os.path.realpath(asked.stdout.decode().strip()) == os.path.realpath(sys.prefix)


def reason(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and "ChildFailedError" not in line]
    return (errors or lines or ["no output"])[0][:300]


def tail(path):
    return path.read_text(errors="replace")[-20000:]


if __name__ == "__main__":
    support.main(check)
