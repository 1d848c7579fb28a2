"""Mixed precision: bf16 autocast trains, the TF32 flag does what it says, GradScaler scales."""

# /// probe
# summary = "bf16 autocast step, TF32 on and off, and GradScaler with an overflow"
# gpus = 1
# required = false
# timeout = 240
# ///

import _ranks
import _support as support


def check():
    support.import_torch()
    found = _ranks.run_ranks(work, 1)[0]
    support.METRICS.update(found)
    tf32 = f"TF32 error {found['tf32_error']:.2g} against {found['fp32_error']:.2g}"
    return f"bf16 loss {found['loss_first']:.3f} to {found['loss_last']:.3f}; {tf32}"


def work(rank, world):
    import torch

    torch.manual_seed(0)
    return {**autocast(torch), **tf32(torch), **scaler(torch)}


def autocast(torch):
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 1)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs = torch.randn(256, 64, device="cuda")
    targets = inputs.sum(1, keepdim=True)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(inputs)
            if output.dtype is not torch.bfloat16:
                support.fail("autocast_off", f"under autocast a linear layer gives {output.dtype}")
            loss = torch.nn.functional.mse_loss(output.float(), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if not losses[-1] < losses[0] * 0.9:
        support.fail("bf16_no_learning", f"20 bf16 steps: loss {losses[0]:.3f} to {losses[-1]:.3f}")
    return {"loss_first": losses[0], "loss_last": losses[-1]}


def tf32(torch):
    """TF32 has 10 bits of mantissa: the flag must change a product's error, both ways."""
    left, right = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    exact = left.double() @ right.double()
    errors = {}
    for name, flag in (("fp32_error", False), ("tf32_error", True)):
        torch.backends.cuda.matmul.allow_tf32 = flag
        error = ((left @ right).double() - exact).abs().max() / exact.abs().max()
        errors[name] = error.item()
    torch.backends.cuda.matmul.allow_tf32 = False
    if errors["fp32_error"] > 1e-5:
        support.fail(
            "tf32_always",
            f"with TF32 off a product's error is {errors['fp32_error']:.2g}",
            "unset NVIDIA_TF32_OVERRIDE and TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        )
    has_tf32 = torch.cuda.get_device_capability()[0] >= 8
    if has_tf32 and errors["tf32_error"] < 10 * errors["fp32_error"]:
        support.fail(
            "tf32_never",
            f"with TF32 on a product is as exact as without ({errors['tf32_error']:.2g})",
            "unset NVIDIA_TF32_OVERRIDE=0",
        )
    return errors


def scaler(torch):
    weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scale = torch.amp.GradScaler("cuda", init_scale=1024.0)
    scale.scale(weight.sum()).backward()
    scale.step(optimizer)
    scale.update()
    if not torch.allclose(weight.detach(), torch.full_like(weight, 0.9)):
        support.fail(
            "scaler_wrong", f"GradScaler: a step of 0.1 left {weight[0].item():.3f}, not 0.9"
        )
    optimizer.zero_grad()
    scale.scale((weight * float("inf")).sum()).backward()
    scale.step(optimizer)
    scale.update()
    if not torch.allclose(weight.detach(), torch.full_like(weight, 0.9)):
        support.fail("scaler_overflow", "GradScaler took a step with an infinite gradient")
    if scale.get_scale() >= 1024.0:
        support.fail("scaler_overflow", "GradScaler did not lower its scale after an overflow")
    return {"scale_after_overflow": scale.get_scale()}


if __name__ == "__main__":
    support.main(check)
