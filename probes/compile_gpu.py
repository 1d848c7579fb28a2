"""torch.compile on the GPU: triton makes kernels, and they are right."""

# /// probe
# summary = "torch.compile makes triton kernels for the GPU; forward and backward are right"
# gpus = 1
# required = false
# timeout = 300
# ///

import os
import shutil
import tempfile
from pathlib import Path

import _ranks
import _support as support


def check():
    if support.EXPECTED.get("compile") is False:
        support.skip("no_compiler_wanted", "the matrix builds this image without a compiler")
    if not any(map(shutil.which, [os.environ.get("CC") or "gcc", "cc", "clang"])):
        support.fail(
            "no_compiler",
            "no C compiler in the image (gcc, clang): triton needs one to start",
            "options: {compile: true} in matrix.yaml, or install gcc",
        )
    support.import_torch()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        os.environ.update(TORCHINDUCTOR_CACHE_DIR=folder, TRITON_CACHE_DIR=f"{folder}/triton")
        result = _ranks.run_ranks(work, 1)[0]
        binaries = [path.name for path in Path(folder).rglob("*.cubin")]
    support.METRICS.update(result, cubins=len(binaries))
    if not result["kernels"] or not binaries:
        support.fail(
            "not_compiled",
            f"torch.compile ran without compiling ({result['kernels']} kernels, "
            f"{len(binaries)} binaries)",
            "unset TORCHDYNAMO_DISABLE and TORCH_COMPILE_DISABLE",
        )
    return (
        f"{result['kernels']} triton kernels, {len(binaries)} binaries; error {result['error']:.2g}"
    )


def work(rank, world):
    import torch
    from torch._inductor import metrics

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)
    ).cuda()
    inputs = torch.randn(32, 64, device="cuda")
    metrics.reset()
    grads = []
    for function in (torch.compile(model), model):
        model.zero_grad()
        output = function(inputs)
        (output.square() * torch.arange(64, device="cuda")).sum().backward()
        grads.append([output.detach()] + [p.grad.clone() for p in model.parameters()])
    error = max(
        ((left - right).abs().max() / right.abs().max().clamp_min(1e-3)).item()
        for left, right in zip(*grads)
    )
    if not error < 1e-3:
        support.fail("compiled_wrong", f"compiled and eager results differ by {error:.3g}")
    return {"kernels": metrics.generated_kernel_count, "error": error}


if __name__ == "__main__":
    support.main(check)
