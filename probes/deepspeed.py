"""DeepSpeed imports and takes one step. For images whose `extras` install it."""

# /// probe
# summary = "DeepSpeed imports and takes one ZeRO step that trains"
# gpus = 1
# default = false
# required = false
# timeout = 300
# ///

import json
from importlib import metadata

import _ranks
import _support as support


def check():
    try:
        version = metadata.version("deepspeed")
    except metadata.PackageNotFoundError:
        support.fail(
            "deepspeed_missing",
            "deepspeed is not installed in this image",
            "options: {extras: [deepspeed==VERSION]} in matrix.yaml",
        )
    support.import_torch()
    losses = _ranks.run_ranks(step, _ranks.nccl_world(), backend="nccl")[0]
    support.METRICS.update(deepspeed=version, losses=losses)
    if not losses[-1] < losses[0]:
        support.fail(
            "no_learning", f"DeepSpeed {version}: the loss went from {losses[0]} to {losses[-1]}"
        )
    return f"DeepSpeed {version}: loss {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps"


def step(rank, world):
    import deepspeed
    import torch

    torch.manual_seed(0)
    settings = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=json.loads(json.dumps(settings))
    )
    inputs = torch.randn(8, 32, device="cuda", dtype=torch.bfloat16)
    losses = []
    for _ in range(5):
        loss = (engine(inputs) - inputs.sum(1, keepdim=True)).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    support.main(check)
