"""torch.compile on CPU compiles: with the image's compiler and headers."""

# /// probe
# summary = "torch.compile compiles on CPU with the image's compiler; the result is right"
# timeout = 300
# ///

import os
import shutil
import sysconfig
import tempfile
from pathlib import Path

import _support as support


def check():
    if support.EXPECTED.get("compile") is False:
        support.skip("no_compiler_wanted", "the matrix builds this image without a compiler")
    named = os.environ.get("CXX")
    compiler = next(
        (p for p in map(shutil.which, [named] if named else ["g++", "c++", "clang++"]) if p), None
    )
    if compiler is None:
        support.fail(
            "no_compiler",
            f"CXX={named} does not exist"
            if named
            else "no C++ compiler in the image (g++, clang++)",
            "options: {compile: true} in matrix.yaml, or install g++",
        )
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        support.fail(
            "no_python_h",
            f"{header} is missing: triton and C++ wrappers cannot be compiled",
            "install the development package of this Python (python3-dev)",
        )
    support.METRICS["compiler"] = compiler
    with tempfile.TemporaryDirectory() as folder:
        # A new, empty cache: what an earlier run compiled proves nothing.
        os.environ.update(TORCHINDUCTOR_CACHE_DIR=folder, TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        kernels = compile_and_compare()
        built = [path.name for path in Path(folder).rglob("*.so")]
    if not kernels or not built:
        support.fail(
            "not_compiled",
            f"torch.compile ran without compiling ({kernels} kernels, {len(built)} libraries)",
            "unset TORCHDYNAMO_DISABLE and TORCH_COMPILE_DISABLE",
        )
    return f"torch.compile made {kernels} kernels with {compiler}; the result is right"


def compile_and_compare():
    torch = support.import_torch()
    from torch._inductor import metrics

    torch.manual_seed(0)

    def work(left, right):
        return torch.nn.functional.gelu(left @ right).softmax(-1).sum(0) * torch.sin(left.sum())

    left, right = torch.randn(32, 16), torch.randn(16, 32)
    metrics.reset()
    compiled = torch.compile(work)(left, right)
    gap = (compiled - work(left, right)).abs().max().item()
    if not gap < 1e-4:
        support.fail("compiled_wrong", f"the compiled function is off by {gap:.3g}")
    return metrics.generated_kernel_count


if __name__ == "__main__":
    support.main(check)
