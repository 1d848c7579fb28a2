"""Megatron Core imports and takes one step of a small GPT. For images whose `extras` install it."""

# /// probe
# summary = "Megatron Core imports and takes one step of a small GPT that trains"
# gpus = 1
# default = false
# required = false
# timeout = 300
# ///

from importlib import metadata

import _ranks
import _support as support


def check():
    try:
        version = metadata.version("megatron-core")
    except metadata.PackageNotFoundError:
        support.fail(
            "megatron_missing",
            "megatron-core is not installed in this image",
            "options: {extras: [megatron-core==VERSION]} in matrix.yaml",
        )
    support.import_torch()
    losses = _ranks.run_ranks(step, _ranks.nccl_world(), backend="nccl")[0]
    support.METRICS.update(megatron=version, losses=losses)
    if not losses[-1] < losses[0]:
        support.fail("no_learning", f"Megatron Core {version}: loss {losses[0]} to {losses[-1]}")
    return f"Megatron Core {version}: loss {losses[0]:.3f} to {losses[-1]:.3f}"


def step(rank, world):
    import torch
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=1)
    tensor_parallel.model_parallel_cuda_manual_seed(0)
    settings = TransformerConfig(
        num_layers=2, hidden_size=64, num_attention_heads=4, use_cpu_initialization=True
    )
    model = GPTModel(
        config=settings,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=128,
        max_sequence_length=32,
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(0, 128, (4, 32), device="cuda")
    places = torch.arange(32, device="cuda").expand(4, 32)
    mask = torch.triu(torch.ones(1, 1, 32, 32, device="cuda", dtype=torch.bool), 1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(tokens, places, mask, labels=tokens).float().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    parallel_state.destroy_model_parallel()
    return losses


if __name__ == "__main__":
    support.main(check)
