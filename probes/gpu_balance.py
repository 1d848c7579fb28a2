"""Every GPU works during a DDP loop: utilisation and memory through NVML."""

# /// probe
# summary = "during a DDP loop no GPU is idle and none holds far more memory than the others"
# gpus = 2
# min_gpus = 1
# all_gpus = true
# required = false
# timeout = 300
# ///

import ctypes
import statistics
import sys
import time

import _ranks
import _support as support

SECONDS = 6.0
IDLE_PERCENT = 20
"""Below this share of time with a kernel a GPU counts as idle."""


def check():
    support.import_torch()
    world = _ranks.nccl_world()
    samples = _ranks.run_ranks(loop, world, backend="nccl")
    per_gpu = [samples[rank] for rank in range(0, world, support.RANKS_PER_GPU)]
    busy = [round(statistics.median(sample["busy"]), 1) for sample in per_gpu]
    memory = [sample["memory"] for sample in per_gpu]
    steps = [sample["steps"] for sample in samples]
    support.METRICS.update(busy_percent=busy, memory_bytes=memory, steps=steps)
    least = float(support.THRESHOLDS.get("busy_percent", IDLE_PERCENT))
    idle = [index for index, percent in enumerate(busy) if percent < least]
    if idle:
        support.fail(
            "gpu_idle",
            f"GPU {', '.join(map(str, idle))} is idle: {', '.join(map(str, busy))} % busy",
            "data loading holds it up, or its rank computes on another GPU: use more workers and "
            "pin_memory, and call torch.cuda.set_device(LOCAL_RANK)",
        )
    if len(memory) > 1 and max(memory) > 2 * min(memory) + 512 * 1024**2:
        mib = ", ".join(str(size // 1024**2) for size in memory)
        support.fail(
            "memory_unbalanced",
            f"memory in use on the GPUs is {mib} MiB",
            "ranks that do not set their device first all open a context on GPU 0",
        )
    return f"{', '.join(map(str, busy))} % busy; {steps[0]} steps in {SECONDS:.0f} s"


def loop(rank, world):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    device = torch.cuda.current_device()
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(4))).to(device)
    ddp = DistributedDataParallel(model, device_ids=[device])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)
    meter = Meter(torch.cuda.get_device_properties(device))
    steps, busy = 0, []
    # Ranks must take the same number of steps: an all-reduce agrees on each block.
    flag = torch.ones(1, device=device)
    begin = time.monotonic()
    while flag.item():
        for _ in range(50):
            inputs = torch.randn(4096, 2048, device=device)
            optimizer.zero_grad()
            ddp(inputs).square().mean().backward()
            optimizer.step()
            if "--delay" in sys.argv and rank == world - 1:
                torch.cuda.synchronize()
                time.sleep(0.1)
        torch.cuda.synchronize()
        steps += 50
        busy.append(meter.busy())
        flag.fill_(float(time.monotonic() - begin < SECONDS))
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MIN)
    return {"busy": busy[1:] or busy, "memory": meter.memory(), "steps": steps}


class Meter:
    """NVML's counters of one GPU, through ctypes, so that the image needs no further package."""

    def __init__(self, properties):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.nvml.nvmlInit_v2()
        self.handle = ctypes.c_void_p()
        uuid = str(properties.uuid)
        uuid = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        get = self.nvml.nvmlDeviceGetHandleByUUID
        if get(uuid.encode(), ctypes.byref(self.handle)) != 0:
            support.fail("nvml_lost", f"NVML does not know the GPU {uuid}")

    def busy(self):
        """Percentage of the last sample period in which a kernel ran."""
        pair = (ctypes.c_uint * 2)()
        if self.nvml.nvmlDeviceGetUtilizationRates(self.handle, ctypes.byref(pair)) != 0:
            support.fail("nvml_lost", "NVML reports no utilisation for this GPU")
        return pair[0]

    def memory(self):
        """Bytes in use on the GPU."""
        triple = (ctypes.c_ulonglong * 3)()
        if self.nvml.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(triple)) != 0:
            support.fail("nvml_lost", "NVML reports no memory for this GPU")
        return triple[2]


if __name__ == "__main__":
    support.main(check)
