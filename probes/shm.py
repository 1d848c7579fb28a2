"""/dev/shm is large enough for NCCL's segments and for DataLoader workers."""

# /// probe
# summary = "/dev/shm holds NCCL's segments; DataLoader workers move more than 64 MB through it"
# timeout = 240
# [variant.docker_default]
# summary = "the probe `shm` fails with Docker's default of 64 MiB: it can see the fault"
# required = false
# shm_mib = 64
# expect = "shm_small"
# ///

import contextlib
import errno
import os
import tempfile

import _support as support

SEGMENT = 9_637_888
"""Bytes of one NCCL shared-memory segment, as its own error message reports (NVIDIA/nccl#342)."""
LEAST = 1024**3
"""1 GiB: 8 ranks with two channels of segments between neighbours, and room for a DataLoader."""
PLACE = "/dev/shm"
FIX = (
    "start the container with --shm-size=1g or --ipc=host (Kubernetes: an emptyDir with medium "
    "Memory at /dev/shm)"
)


def check():
    try:
        room = os.statvfs(PLACE)
    except OSError as error:
        support.fail("shm_missing", f"{PLACE}: {error.strerror}", FIX)
    total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    support.METRICS.update(total_bytes=total, free_bytes=free)
    least = int(support.THRESHOLDS.get("bytes", LEAST))
    wanted = max(8, least // SEGMENT // 8)
    fitted = segments(wanted)
    support.METRICS["segments"] = fitted
    if fitted < wanted or total < least:
        size = f"{total / 1024**2:.0f} MiB ({free / 1024**2:.0f} MiB free)"
        room_for = f"room for {fitted} NCCL segments of 9.6 MB"
        support.fail("shm_small", f"{PLACE} is {size}: {room_for}", FIX)
    moved = loader()
    support.METRICS["loader_bytes"] = moved
    return f"{PLACE} is {total / 1024**2:.0f} MiB; workers moved {moved / 1024**2:.0f} MiB"


def segments(wanted):
    """How many NCCL-sized files can be allocated, up to `wanted`; all are removed again."""
    fitted = 0
    with contextlib.ExitStack() as files:
        try:
            for _ in range(wanted):
                file = files.enter_context(tempfile.TemporaryFile(dir=PLACE))
                os.posix_fallocate(file.fileno(), 0, SEGMENT)
                fitted += 1
        except PermissionError as error:
            support.fail("shm_not_writable", f"{PLACE}: {error.strerror}", FIX)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return fitted


class Batches:
    """Items of 16 MiB: six of them are more than Docker's default /dev/shm."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        import torch

        return torch.full((4 * 1024**2,), float(index))


def loader():
    torch = support.import_torch()
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    try:
        # All batches are kept, so that they are in shared memory at the same time.
        held = list(DataLoader(Batches(), num_workers=2, timeout=max(5.0, support.remaining())))
    except RuntimeError as error:
        text = str(error)
        if "shm" in text or "shared memory" in text or "Bus error" in text:
            support.fail("shm_small", f"a DataLoader worker died: {text.splitlines()[0]}", FIX)
        raise
    if [int(batch[0, 0].item()) for batch in held] != list(range(6)):
        support.fail(
            "loader_wrong", "DataLoader workers returned different batches from those requested"
        )
    return sum(batch.numel() * 4 for batch in held)


if __name__ == "__main__":
    support.main(check)
