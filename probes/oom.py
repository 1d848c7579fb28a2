"""A step that does not fit in memory gives a clear error, and the process group still works."""

# /// probe
# summary = "out of memory is a clear error; afterwards memory comes back and collectives work"
# gpus = 1
# required = false
# timeout = 240
# ///

import _ranks
import _support as support


def check():
    support.import_torch()
    found = _ranks.run_ranks(work, _ranks.nccl_world(), backend="nccl")
    support.METRICS.update(found[0])
    return (
        f"out of memory is reported clearly ({found[0]['message'][:80]}), and the group still works"
    )


def work(rank, world):
    import torch
    import torch.distributed as dist

    device = torch.cuda.current_device()
    value = torch.ones(1, device=device)
    dist.all_reduce(value)
    total = torch.cuda.mem_get_info(device)[1]
    # A limit makes the step fail in the allocator without filling a GPU that others may share.
    torch.cuda.set_per_process_memory_fraction(min(1.0, 2 * 1024**3 / total), device)
    model = torch.nn.Linear(1024, 1024).to(device)
    message = ""
    try:
        model(torch.randn(1024**2, 1024, device=device)).square().sum().backward()
    except torch.cuda.OutOfMemoryError as error:
        message = str(error).splitlines()[0]
    if not message:
        support.fail("oom_unseen", "a step of more than 8 GiB passed under a limit of 2 GiB")
    if "out of memory" not in message:
        support.fail("oom_unclear", f"out of memory is reported as: {message}")
    model.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    model(torch.randn(64, 1024, device=device)).sum().backward()
    dist.all_reduce(value)
    if value.item() != world * world:
        support.fail(
            "group_broken", f"after running out of memory an all-reduce gives {value.item()}"
        )
    return {"message": message}


if __name__ == "__main__":
    support.main(check)
