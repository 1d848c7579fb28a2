"""Ranks of a distributed probe: forked after `import torch`, with a hard deadline and stacks kept.

The parent never touches CUDA, so every rank may. Ranks meet through a file, not a port.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

import _support as support

LAUNCH_GRACE = 5.0
"""Seconds that the other ranks have to end once one has failed."""


def run_ranks(work, world, timeout=None, backend=None):
    """Fork `world` ranks, run work(rank, world) in each; return their results in rank order.

    With a backend the process group is made and destroyed around `work`. A rank that raises, dies
    or hangs ends the probe with `rank_failed`, `rank_died` or `hang`.
    """
    deadline = time.monotonic() + min(timeout or support.remaining(), support.remaining())
    folder = Path(tempfile.mkdtemp(prefix="torchproof-ranks-"))
    ranks = {}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        for rank in range(world):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                _rank_main(work, rank, world, backend, folder, writer)
            os.close(writer)
            ranks[rank] = {"pid": pid, "reader": reader, "text": b"", "status": None}
        _collect(ranks, deadline)
        return _judge(ranks, folder)
    finally:
        for entry in ranks.values():
            os.close(entry["reader"])
            if entry["status"] is None:
                os.kill(entry["pid"], signal.SIGKILL)
                os.waitpid(entry["pid"], 0)
        shutil.rmtree(folder, ignore_errors=True)


def _rank_main(work, rank, world, backend, folder, writer):
    log = os.open(str(folder / f"rank{rank}.log"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # PR_SET_PDEATHSIG: a rank never outlives the probe, however the probe ends.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    answer = {}
    try:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
        if backend:
            _join(backend, rank, world, folder)
        answer = {"ok": work(rank, world)}
        if backend == "nccl":
            import torch.distributed as dist

            # gloo's may wait forever for a rank that has already exited; skipping it does no harm.
            if dist.is_initialized():
                dist.destroy_process_group()
    except support.End as end:
        answer = {"end": [end.status, end.code, end.message, end.fix]}
    except BaseException as error:
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {str(error).strip() or repr(error)}"}
    answer["metrics"] = support.METRICS
    answer["at"] = time.time()
    data = json.dumps(answer, default=str).encode()
    while data:
        data = data[os.write(writer, data) :]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _join(backend, rank, world, folder):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if backend == "nccl":
        # The device first, and no device_id below: that argument makes torch 2.7.0 hang at random.
        torch.cuda.set_device(rank // support.RANKS_PER_GPU)
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=max(5.0, support.remaining() - 5.0)),
    )


def _collect(ranks, deadline):
    failed_at = None
    while any(entry["status"] is None for entry in ranks.values()):
        open_readers = [e["reader"] for e in ranks.values() if e["status"] is None]
        ready, _, _ = select.select(open_readers, [], [], 0.2)
        for entry in ranks.values():
            if entry["status"] is not None or entry["reader"] not in ready:
                continue
            chunk = os.read(entry["reader"], 65536)
            if chunk:
                entry["text"] += chunk
                continue
            entry["status"] = os.waitpid(entry["pid"], 0)[1]
            if failed_at is None and (entry["status"] != 0 or b'"ok"' not in entry["text"][:6]):
                failed_at = time.monotonic()
        now = time.monotonic()
        if now > deadline or (failed_at is not None and now > failed_at + LAUNCH_GRACE):
            _end(ranks)
            return


def _end(ranks):
    left = [entry for entry in ranks.values() if entry["status"] is None]
    for entry in left:
        os.kill(entry["pid"], signal.SIGUSR1)
    time.sleep(1.0)
    for entry in left:
        os.kill(entry["pid"], signal.SIGKILL)
        os.waitpid(entry["pid"], 0)
        entry["status"] = "hung"


def _judge(ranks, folder):
    logs = {}
    for rank in ranks:
        path = folder / f"rank{rank}.log"
        logs[rank] = path.read_text(errors="replace") if path.exists() else ""
        if logs[rank].strip():
            print(f"--- rank {rank} ---\n{logs[rank].rstrip()}", file=sys.stderr)
    answers = {}
    for rank, entry in ranks.items():
        answers[rank] = json.loads(entry["text"]) if entry["text"] else {}
        if rank == 0:
            support.METRICS.update(answers[rank].get("metrics", {}))
    told = [(a["at"], r) for r, a in answers.items() if "end" in a or "error" in a]
    died = [r for r, entry in ranks.items() if entry["status"] not in (0, "hung")]
    hung = [r for r, entry in ranks.items() if entry["status"] == "hung"]
    # A rank that was killed comes first: what the others then report is a consequence.
    if died:
        rank = died[0]
        support.fail("rank_died", f"rank {rank} {_death(ranks[rank]['status'])}", rank=rank)
    if told:
        answer = answers[min(told)[1]]
        if "end" in answer:
            raise support.End(*answer["end"])
        rank = min(told)[1]
        support.fail("rank_failed", f"rank {rank}: {answer['error']}", rank=rank)
    if hung:
        places = ", ".join(f"rank {r} in {_top_frame(logs[r])}" for r in hung)
        support.fail(
            "hang",
            f"{len(hung)} of {len(ranks)} ranks did not end in time: {places}",
            "the stacks of all ranks are in the log; look at the rank that is not in a collective",
            hung_ranks=hung,
        )
    return [answers[rank].get("ok") for rank in sorted(ranks)]


def _death(status):
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was killed by signal {number} ({signal.Signals(number).name})"
    return f"ended with exit code {os.WEXITSTATUS(status)}"


def _top_frame(log):
    """The innermost Python frame of the main thread in a faulthandler dump."""
    main = log.rsplit("Current thread", 1)[-1]
    frame = re.search(r'File "([^"]+)", line (\d+) in (\S+)', main)
    return f"{frame[3]} ({Path(frame[1]).name}:{frame[2]})" if frame else "an unknown place"


def gpus():
    """Ask in a forked child which GPUs CUDA sees: a list of {name, arch, memory, uuid,
    code}; `code` is the architectures that torch has device code for.

    An empty list where there is none; fails with the runtime's own words where CUDA is broken.
    """
    return run_ranks(_ask_gpus, 1, timeout=60)[0]


def _ask_gpus(rank, world):
    import torch

    if not torch.backends.cuda.is_built():
        support.fail("cpu_build", f"torch {torch.__version__} is built without CUDA")
    try:
        torch.cuda.init()
    except RuntimeError as error:
        if re.search(r"no CUDA-capable device|No CUDA GPUs|Found no NVIDIA driver", str(error)):
            return []
        raise
    found = []
    for index in range(torch.cuda.device_count()):
        props = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": props.name,
                "arch": f"sm_{props.major}{props.minor}",
                "memory": props.total_memory,
                "uuid": str(getattr(props, "uuid", "")),
                "code": torch.cuda.get_arch_list(),
            }
        )
    return found


def nccl_world(minimum=1):
    """How many NCCL ranks to start: RANKS_PER_GPU on each GPU. Skips where there is no GPU."""
    found = gpus()
    if len(found) == 0:
        support.skip("no_gpu", "no GPU here: the NCCL part was not run")
    support.METRICS.update(gpus=len(found), ranks_per_gpu=support.RANKS_PER_GPU)
    if support.RANKS_PER_GPU > 1:
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    world = len(found) * support.RANKS_PER_GPU
    if world < minimum:
        support.skip("too_few_gpus", f"{minimum} ranks are needed; {len(found)} GPU here")
    support.METRICS["ranks"] = world
    return world
