"""Two training steps under DDP, against one process on the joined batch."""

# /// probe
# summary = "DDP: gradients and parameters are those of one process on the joined batch"
# gpus = 2
# min_gpus = 1
# timeout = 300
# [variant.gloo]
# summary = "DDP over gloo on CPU, against one process on the joined batch"
# gpus = 0
# args = ["--backend", "gloo"]
# ///

import sys

import _ranks
import _support as support

SAMPLES, FEATURES, STEPS = 64, 16, 2


def check():
    support.import_torch()
    backend = sys.argv[sys.argv.index("--backend") + 1] if "--backend" in sys.argv else "nccl"
    world = _ranks.nccl_world() if backend == "nccl" else 2
    support.METRICS.update(backend=backend, ranks=world)
    shares = _ranks.run_ranks(step, world, backend=backend)
    seen = sorted(index for share in shares for index in share)
    if seen != list(range(SAMPLES)):
        twice = len(seen) - len(set(seen))
        support.fail(
            "shares_wrong",
            f"the ranks' shares are not disjoint and complete: {twice} samples are listed twice, "
            f"{SAMPLES - len(set(seen))} are missing",
        )
    return f"{STEPS} steps on {world} {backend} ranks equal one process on the joined batch"


def step(rank, world):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DistributedSampler

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    on_gpu = dist.get_backend() == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    data = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, FEATURES, generator=data)
    targets = torch.randn(SAMPLES, 4, generator=data)

    # A different seed for each rank: only DDP's own broadcast can make the weights equal.
    reference = build(torch, seed=0)
    model = build(torch, seed=rank).to(device)
    ddp = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)
    compare("weights_differ", "weights after wrapping", model, reference, rank)

    sampler = DistributedSampler(range(SAMPLES), num_replicas=world, rank=rank, shuffle=True)
    share = list(sampler)
    optimizers = [
        torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (ddp, reference)
    ]
    loss = torch.nn.MSELoss()
    for number in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss(ddp(inputs[share].to(device)), targets[share].to(device)).backward()
        alone = local_gradients(torch, reference, loss, inputs[share], targets[share])
        loss(reference(inputs), targets).backward()
        compare_gradients(torch, model, reference, alone, rank, number)
        for optimizer in optimizers:
            optimizer.step()
        compare("weights_diverged", f"weights after step {number + 1}", model, reference, rank)
    return share


def build(torch, seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 32),
        torch.nn.Tanh(),
        torch.nn.Unflatten(1, (2, 16)),
        torch.nn.Conv1d(2, 4, 3, padding=1),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 4),
    )


def local_gradients(torch, reference, loss, inputs, targets):
    """Gradients of this rank's share alone: what a DDP that does not reduce would give."""
    parameters = list(reference.parameters())
    return torch.autograd.grad(loss(reference(inputs), targets), parameters)


def compare(code, what, model, reference, rank):
    for (name, mine), right in zip(model.named_parameters(), reference.parameters()):
        gap = (mine.detach().cpu() - right.detach()).abs().max().item()
        if not gap <= 1e-4 * max(1.0, right.detach().abs().max().item()):
            support.fail(
                code,
                f"rank {rank}: {what} differ from the reference at {name} by {gap:.3g}",
                "the ranks train different models; look for init_sync=False, a model changed after "
                "wrapping, or a broken broadcast",
            )


def compare_gradients(torch, model, reference, alone, rank, number):
    named = list(model.named_parameters())
    for (name, parameter), right, own in zip(named, reference.parameters(), alone):
        if parameter.grad is None:
            support.fail("gradient_missing", f"rank {rank}: {name} has no gradient")
        mine, wanted = parameter.grad.cpu(), right.grad
        scale = wanted.abs().max().item()
        if close(mine, wanted, scale):
            continue
        where = f"rank {rank}, step {number + 1}: the gradient of {name}"
        if close(mine, own, scale):
            support.fail(
                "gradient_not_reduced",
                f"{where} is that of this rank's own share: nothing was reduced",
                "exit no_sync() before the step that must reduce",
            )
        ratio = (mine.flatten() @ wanted.flatten() / (wanted.flatten() @ wanted.flatten())).item()
        scaled = close(mine, wanted * ratio, scale)
        hint = f" (it is {ratio:.3g} times the right one)" if scaled else ""
        gap = (mine - wanted).abs().max().item()
        support.fail(
            "gradient_mismatch",
            f"{where} is off by {gap:.3g} from one process on the joined batch{hint}",
            "the all-reduce gives a wrong result; try NCCL_P2P_DISABLE=1 and another NCCL version",
        )


def close(left, right, scale):
    return (left - right).abs().max().item() <= 1e-4 * max(scale, 1e-3)


if __name__ == "__main__":
    support.main(check)
