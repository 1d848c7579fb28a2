"""Two training steps under FSDP, against DDP and against one process on the joined batch."""

# /// probe
# summary = "FSDP: gathered shards equal the parameters that DDP reaches"
# gpus = 2
# min_gpus = 1
# required = false
# timeout = 300
# ///

import _ranks
import _support as support

SAMPLES, FEATURES, STEPS = 32, 64, 2


def check():
    support.import_torch()
    world = _ranks.nccl_world()
    results = _ranks.run_ranks(step, world, backend="nccl")
    shards = [result["shard"] for result in results]
    support.METRICS.update(shards=shards, gap=max(result["gap"] for result in results))
    return f"{STEPS} FSDP steps on {world} ranks equal DDP; shards of {shards} elements"


def step(rank, world):
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.cuda.current_device()
    whole = build(torch).to(device)
    total = sum(parameter.numel() for parameter in whole.parameters())
    sharded = FullyShardedDataParallel(build(torch).to(device), device_id=device)
    doubled = DistributedDataParallel(build(torch).to(device), device_ids=[device])
    shard = sum(parameter.numel() for parameter in sharded.parameters())
    if world > 1 and shard >= total:
        support.fail("not_sharded", f"rank {rank} holds all {shard} elements: nothing is sharded")

    data = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, FEATURES, generator=data).to(device)
    targets = torch.randn(SAMPLES, 8, generator=data).to(device)
    mine = slice(rank * SAMPLES // world, (rank + 1) * SAMPLES // world)
    for model, share in ((sharded, mine), (doubled, mine), (whole, slice(None))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs[share]), targets[share]).backward()
            optimizer.step()
    with FullyShardedDataParallel.summon_full_params(sharded):
        found = [parameter.detach().clone() for parameter in sharded.module.parameters()]
    pairs = (("DDP", doubled.module.parameters()), ("one process", whole.parameters()))
    worst = 0.0
    for name, parameters in pairs:
        for got, right in zip(found, parameters):
            gap = (got - right.detach()).abs().max().item()
            worst = max(worst, gap)
            if not gap < 1e-4:
                support.fail(
                    "fsdp_mismatch",
                    f"rank {rank}: FSDP and {name} differ by {gap:.3g} after {STEPS} steps",
                    "reduce-scatter or all-gather gives wrong results; try NCCL_P2P_DISABLE=1",
                )
    return {"shard": shard, "gap": worst}


def build(torch):
    torch.manual_seed(11)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 128), torch.nn.Tanh(), torch.nn.Linear(128, 8)
    )


if __name__ == "__main__":
    support.main(check)
