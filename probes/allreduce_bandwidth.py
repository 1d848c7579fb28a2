"""All-reduce over a sweep of sizes: is it right, and how fast is it.

algbw = bytes / seconds; busbw = algbw * 2 (n - 1) / n for n ranks, which is comparable between
counts of ranks (NVIDIA nccl-tests, doc/PERFORMANCE.md). GB is 10^9 bytes. A time is that of the
slowest rank; a figure is the median of several times.
"""

# /// probe
# summary = "All-reduce is right at every size; its bus bandwidth and the transport actually used"
# gpus = 2
# min_gpus = 1
# all_gpus = true
# timeout = 300
# [variant.gloo]
# summary = "All-reduce over gloo on CPU is right at every size; its bus bandwidth"
# gpus = 0
# all_gpus = false
# timeout = 300
# args = ["--backend", "gloo"]
# ///

import os
import statistics
import sys
import time

import _ncclog
import _ranks
import _support as support

SMALLEST = 1024
LARGEST = {"nccl": 4 * 1024**3, "gloo": 64 * 1024**2}
SAMPLES = {"nccl": 7, "gloo": 3}
SECONDS_A_SIZE = {"nccl": 2.0, "gloo": 2.0}
PATTERN = 61
"""Period of the test data: small integers, so that float32 sums are exact."""


def option(name, default):
    flag = f"--{name}"
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else default


def check():
    support.import_torch()
    backend = option("backend", "nccl")
    largest = int(support.THRESHOLDS.get("max_bytes") or option("max-bytes", LARGEST[backend]))
    if backend == "nccl":
        world = _ranks.nccl_world()
        log = _ncclog.start()
    else:
        world = int(option("ranks", "2"))
    support.METRICS.update(backend=backend, ranks=world, nccl=support.nccl_version())
    sizes = [SMALLEST * 4**power for power in range(16) if SMALLEST * 4**power <= largest]
    measured = _ranks.run_ranks(lambda rank, n: sweep(rank, n, sizes), world, backend=backend)
    table = judge(sizes, measured, world)
    support.METRICS["sweep"] = table
    best = max(table, key=lambda row: row["busbw_gbps"])
    support.METRICS["busbw_gbps"] = best["busbw_gbps"]
    told = f"{best['busbw_gbps']:.3g} GB/s bus bandwidth at {best['bytes']} bytes"
    if backend == "nccl":
        support.METRICS.update(_ncclog.read(log))
        told += f" by {support.METRICS['transport']}"
    if world == 1:
        told = "one rank: right sums, no bandwidth to measure"
    return f"{world} {backend} ranks: {told}"


def sweep(rank, world, sizes):
    """Check and time every size; returns [[seconds, ...], ...], one list a size."""
    import torch
    import torch.distributed as dist

    on_gpu = dist.get_backend() == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    times = []
    for size in sizes:
        if on_gpu and not fits(torch, dist, size, device):
            break
        count = size // 4
        verify(torch, dist, count, rank, world, device)
        buffer = torch.zeros(count, device=device)
        times.append(measure(torch, dist, buffer, on_gpu))
        del buffer
    return times


def fits(torch, dist, size, device):
    """Whether every rank has room for three buffers of this size (two are live in a check)."""
    free = torch.cuda.mem_get_info(device)[0] // support.RANKS_PER_GPU
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    room = torch.tensor([1.0 if free > 3.5 * size else 0.0], device=device)
    dist.all_reduce(room, op=dist.ReduceOp.MIN)
    return room.item() > 0


def verify(torch, dist, count, rank, world, device):
    """Element i of rank r is (i mod 61 + 1) (r + 1): every sum is known and exact."""
    pattern = torch.arange(PATTERN, device=device, dtype=torch.float32) + 1
    value = pattern.repeat(count // PATTERN + 1)[:count] * (rank + 1)
    dist.all_reduce(value)
    value /= world * (world + 1) / 2
    wrong = 0
    whole = count // PATTERN * PATTERN
    wrong += int((value[:whole].view(-1, PATTERN) != pattern).sum().item()) if whole else 0
    wrong += int((value[whole:] != pattern[: count - whole]).sum().item())
    if wrong:
        support.fail(
            "wrong_sum",
            f"rank {rank}: {wrong} of {count} elements of an all-reduce of {count * 4} bytes "
            "are wrong",
            "try NCCL_P2P_DISABLE=1 and another NCCL version; check the GPUs for ECC errors",
        )


def measure(torch, dist, buffer, on_gpu):
    """Seconds of one all-reduce, several samples; small sizes are timed in batches."""
    backend = "nccl" if on_gpu else "gloo"

    def batch(number):
        if on_gpu:
            torch.cuda.synchronize()
        else:
            dist.barrier()
        begin = time.perf_counter()
        for _ in range(number):
            dist.all_reduce(buffer)
        if on_gpu:
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / number

    batch(2)
    guess = torch.tensor([batch(2)], device=buffer.device)
    dist.all_reduce(guess, op=dist.ReduceOp.MAX)
    number = int(SECONDS_A_SIZE[backend] / SAMPLES[backend] / max(guess.item(), 1e-7))
    number = max(1, min(number, 20 if on_gpu else 5))
    return [batch(number) for _ in range(SAMPLES[backend])]


def judge(sizes, measured, world):
    """One row a size: the slowest rank of each sample, the median of the samples."""
    rows = []
    for size, *ranks in zip(sizes, *measured):
        seconds = statistics.median(max(sample) for sample in zip(*ranks))
        algbw = size / seconds / 1e9
        rows.append(
            {
                "bytes": size,
                "seconds": seconds,
                "algbw_gbps": round(algbw, 4),
                "busbw_gbps": round(algbw * 2 * (world - 1) / world, 4),
            }
        )
    if not rows:
        support.fail("nothing_measured", "not even the smallest size fits the GPU's memory")
    return rows


if __name__ == "__main__":
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    support.main(check)
