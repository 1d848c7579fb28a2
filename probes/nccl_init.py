"""The NCCL library loads, and communicators of 1 to N ranks start and end."""

# /// probe
# summary = "NCCL loads; communicators of 1..N ranks start, sum correctly and end"
# gpus = 2
# min_gpus = 0
# all_gpus = true
# timeout = 300
# ///

import _ranks
import _support as support


def check():
    support.import_torch()
    version = support.nccl_version()
    if version is None:
        support.fail("nccl_missing", "no libnccl.so is mapped after `import torch`")
    files = [support.short(path) for path in support.mapped_libraries(r"^libnccl\.so")]
    support.METRICS.update(nccl=version, nccl_files=files)
    found = _ranks.gpus()
    if not found:
        support.skip(
            "no_gpu",
            f"no GPU here: NCCL {version} loads, its communicators were not tried",
        )
    world = _ranks.nccl_world()
    tried = []
    for ranks in sorted({1, 2, world} & set(range(1, world + 1))):
        sums = _ranks.run_ranks(ring, ranks, backend="nccl")
        if sums != [ranks * (ranks + 1) / 2] * ranks:
            support.fail("wrong_sum", f"all-reduce of {ranks} ranks gave {sums}")
        tried.append(ranks)
    support.METRICS["communicators"] = tried
    return f"NCCL {version}: communicators of {', '.join(map(str, tried))} ranks"


def ring(rank, world):
    import torch
    import torch.distributed as dist

    value = torch.full((1024,), float(rank + 1), device="cuda")
    dist.all_reduce(value)
    dist.barrier(device_ids=[torch.cuda.current_device()])
    return float(value.mean().item())


if __name__ == "__main__":
    support.main(check)
