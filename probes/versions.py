"""Versions that are actually loaded, compared with the lock."""

# /// probe
# summary = "torch, CUDA, cuDNN, NCCL and triton are the versions that the lock names"
# timeout = 300
# ///

import platform
import sys
from importlib import metadata

import _support as support


def check():
    torch = support.import_torch()
    cuda = torch.version.cuda
    found = {
        "torch": torch.__version__.split("+")[0],
        "cuda": "cu" + cuda.replace(".", "") if cuda else None,
        "cudnn": loaded_cudnn(torch),
        "nccl": support.nccl_version(),
        "triton": installed("triton"),
        "python": ".".join(map(str, sys.version_info[:2])),
    }
    support.METRICS["versions"] = found
    support.METRICS["python"] = platform.python_version()
    if cuda is None:
        support.fail(
            "cpu_build",
            f"torch {torch.__version__} is built without CUDA",
            "install the CUDA wheel: the CPU one comes from another index",
        )
    wrong = {name: version for name, version in found.items() if differs(name, version)}
    if wrong:
        told = ", ".join(f"{n} {v}, not {support.EXPECTED[n]}" for n, v in sorted(wrong.items()))
        support.fail(
            "version_mismatch",
            f"loaded: {told}",
            "a later pip install or a library earlier on the search path replaced the locked one",
        )
    if found["nccl"] is None:
        support.fail("nccl_missing", "no libnccl.so is mapped after `import torch`")
    against = "the lock" if support.EXPECTED else "nothing: no lock was given"
    listed = ", ".join(f"{name} {version}" for name, version in found.items())
    return f"{listed}; compared with {against}"


def loaded_cudnn(torch):
    """Let torch load cuDNN and compare it with the one it was compiled against."""
    if torch.version.cuda is None:
        return None
    try:
        torch.backends.cudnn.version()
    except RuntimeError as error:
        support.fail("cudnn_mismatch", str(error).strip())
    return support.cudnn_version()


def installed(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def differs(name, version):
    """A lock may give more digits than a library reports (cuDNN 9.10.2.21)."""
    wanted = support.EXPECTED.get(name)
    if not wanted:
        return False
    if version is None:
        return True
    have, want = version.split("."), wanted.split("+")[0].split(".")
    length = min(len(have), len(want))
    return have[:length] != want[:length]


if __name__ == "__main__":
    support.main(check)
