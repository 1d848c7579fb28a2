"""CPUs and threads: what torch starts fits what the scheduler and the cgroup allow."""

# /// probe
# summary = "threads fit affinity, cpu.max and pids.max; OMP_NUM_THREADS does not cripple the rest"
# timeout = 300
# ///

import os
import resource
import shutil
import subprocess
import threading
from pathlib import Path

import _support as support

SPARE = 64
"""Threads besides torch's own: DataLoader, NCCL, autograd, the profiler."""


def check():
    affinity = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    limit = process_limit()
    omp = os.environ.get("OMP_NUM_THREADS")
    said = nproc()
    support.METRICS.update(
        affinity=affinity,
        host_cpus=os.cpu_count(),
        cpu_quota=quota,
        process_limit=limit,
        nproc=said,
    )
    usable = max(1, min(affinity, round(quota) if quota else affinity))
    if omp is not None and omp.isdigit() and int(omp) < usable and not launched():
        support.fail(
            "omp_num_threads",
            f"nproc says {said} because OMP_NUM_THREADS={omp}; affinity is {affinity}",
            "unset it (enroot's PyTorch hook sets it for images with PYTORCH_VERSION), or set it "
            "for each task",
        )
    wanted = int(omp) if omp and omp.isdigit() else affinity
    if limit is not None and limit < 2 * max(wanted, os.cpu_count() or 1) + SPARE:
        support.fail(
            "pids_limit",
            f"the limit on processes and threads is {limit} on a host of {os.cpu_count()} CPUs: "
            "libgomp will fail to create threads",
            "set OMP_NUM_THREADS, or raise --pids-limit (ulimit -u)",
        )
    torch = support.import_torch()
    threads = torch.get_num_threads()
    support.METRICS["torch_threads"] = threads
    if quota and threads > max(1, 4 * quota):
        support.fail(
            "oversubscribed",
            f"torch starts {threads} threads on a quota of {quota:g} CPUs (cpu.max)",
            f"set OMP_NUM_THREADS={max(1, round(quota))}",
        )
    start_threads(torch, threads)
    return (
        f"torch uses {threads} threads; affinity {affinity}, quota {quota or 'none'}, nproc {said}"
    )


def launched():
    """Tell whether a launcher set OMP_NUM_THREADS for each rank, as torchrun and Slurm do."""
    return any(name in os.environ for name in ("LOCAL_RANK", "TORCHELASTIC_RUN_ID"))


def nproc():
    program = shutil.which("nproc")
    if program is None:
        return None
    answer = subprocess.run(
        [program], stdout=subprocess.PIPE, text=True, check=False
    ).stdout.strip()
    return int(answer) if answer.isdigit() else None


def cpu_quota():
    """CPUs that the cgroup grants (cpu.max, or cfs_quota of cgroup 1); None without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        folder = Path("/sys/fs/cgroup/cpu")
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else None
    except (OSError, ValueError):
        return None


def process_limit():
    """The tightest limit on processes and threads; None without one."""
    limits = []
    for place in ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"):
        try:
            limits.append(int(Path(place).read_text()))
        except (OSError, ValueError):
            continue
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    # Root is not bound by RLIMIT_NPROC.
    if soft != resource.RLIM_INFINITY and os.getuid() != 0:
        limits.append(soft)
    return min(limits) if limits else None


def start_threads(torch, threads):
    value = torch.randn(512, 512)
    (value @ value).sum().item()
    ready = threading.Barrier(threads + 1)
    started = []
    try:
        for _ in range(threads):
            thread = threading.Thread(target=ready.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        ready.abort()
        support.fail(
            "pids_limit",
            f"thread {len(started) + 1} cannot be started: {error}",
            "set OMP_NUM_THREADS, or raise --pids-limit (ulimit -u)",
        )
    ready.wait()


if __name__ == "__main__":
    support.main(check)
