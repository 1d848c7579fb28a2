"""torch.multiprocessing.spawn starts processes that see the same torch and share tensors."""

# /// probe
# summary = "torch.multiprocessing.spawn starts two processes, which share a tensor's memory"
# timeout = 240
# ///

import sys
import time

import _support as support


def work(rank, shared, told):
    import torch

    shared[rank] += rank + 1
    told.put((rank, sys.executable, sys.prefix, torch.__file__))


def check():
    torch = support.import_torch()
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    shared = torch.zeros(2).share_memory_()
    told = context.SimpleQueue()
    group = mp.spawn(work, args=(shared, told), nprocs=2, join=False)
    deadline = time.monotonic() + support.remaining()
    try:
        # join() returns as each process ends; True once all have.
        while not group.join(timeout=max(0.1, deadline - time.monotonic())):
            if time.monotonic() > deadline:
                for process in group.processes:
                    process.kill()
                support.fail("hang", "the spawned processes did not end in time")
    except mp.ProcessRaisedException as error:
        support.fail("spawn_failed", f"a spawned process raised: {last_line(str(error))}")
    except mp.ProcessExitedException as error:
        support.fail("spawn_died", str(error))
    others = sorted(told.get() for _ in range(2))
    for rank, executable, prefix, torch_file in others:
        if prefix != sys.prefix or torch_file != torch.__file__:
            support.fail(
                "wrong_interpreter",
                f"process {rank} ran {executable} with {torch_file}, not {sys.executable} with "
                f"{torch.__file__}",
                "something in PYTHONPATH, PYTHONHOME or PYTHONEXECUTABLE leads elsewhere",
            )
    if shared.tolist() != [1.0, 2.0]:
        support.fail(
            "memory_not_shared",
            f"two processes wrote 1 and 2 into a shared tensor; it holds {shared.tolist()}",
        )
    return "two spawned processes wrote into one shared tensor"


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


if __name__ == "__main__":
    support.main(check)
