"""Which CUDA libraries are mapped once torch works: one of each, from the image's wheels."""

# /// probe
# summary = "one libcudnn, libnccl and libcublas each is mapped, from the environment's own wheels"
# timeout = 300
# ///

import os
import re
import sys
from pathlib import Path

import _support as support

FAMILIES = {
    "libcudnn": r"^libcudnn\.so",
    "libnccl": r"^libnccl\.so",
    "libcublas": r"^libcublas\.so",
    "libcudart": r"^libcudart[.-]",
}
NEEDED = ("libnccl", "libcublas")


def check():
    notes = interference()
    torch = load_torch(notes)
    exercise(torch)
    mapped = {name: support.mapped_libraries(pattern) for name, pattern in FAMILIES.items()}
    support.METRICS["mapped"] = {
        name: [support.short(path) for path in p] for name, p in mapped.items()
    }
    cudnn_parts(mapped["libcudnn"], notes)
    for name in NEEDED:
        if torch.version.cuda and not mapped[name]:
            support.fail(f"{name[3:]}_missing", f"no {name} is mapped after `import torch`")
    for name, paths in mapped.items():
        real = sorted({os.path.realpath(path) for path in paths})
        if len(real) > 1:
            support.fail(
                "loaded_twice",
                f"{len(real)} files of {name} are mapped at once: {', '.join(real)}{said(notes)}",
                "remove all but the wheel's: unset LD_LIBRARY_PATH and LD_PRELOAD, uninstall the "
                "distribution's package",
            )
        for path in real:
            if not inside(path):
                support.fail(
                    "foreign_library",
                    f"{name} is mapped from {path}, outside the environment {sys.prefix}"
                    f"{said(notes)}",
                    "unset LD_PRELOAD and LD_LIBRARY_PATH, or remove that library from the image",
                )
    count = sum(len(paths) for paths in mapped.values())
    tail = f"; {'; '.join(notes)}, without effect" if notes else ""
    return f"{count} CUDA libraries mapped, each once, all inside the environment{tail}"


def load_torch(notes):
    try:
        return support.import_torch()
    except (ImportError, OSError) as error:
        text = str(error)
        symbol = re.search(r"undefined symbol: (nccl\w+)", text)
        if symbol:
            mapped = ", ".join(support.mapped_libraries(FAMILIES["libnccl"])) or "none"
            support.fail(
                "nccl_symbol",
                f"torch needs {symbol[1]}, which the mapped NCCL lacks ({mapped}){said(notes)}",
                "install the NCCL that this torch pins or a newer one, and load no other before it",
            )
        raise


def exercise(torch):
    """Make torch load cuDNN and cuBLAS as far as a CPU allows."""
    torch.nn.functional.conv2d(torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))
    if torch.version.cuda:
        try:
            torch.backends.cudnn.version()
        except RuntimeError as error:
            support.fail(
                "cudnn_mismatch",
                str(error).strip().splitlines()[0],
                "install the cuDNN that this torch pins; LD_LIBRARY_PATH must not lead to another",
            )


def cudnn_parts(paths, notes):
    """cuDNN loads its parts by name at the first convolution: they have to be beside it."""
    if not paths:
        return
    folder = Path(os.path.realpath(paths[0])).parent
    version = support.cudnn_version(paths[0])
    for part in sorted(folder.glob("libcudnn_*.so.*")):
        if os.path.realpath(part.parent) != str(folder):
            support.fail("cudnn_parts_apart", f"{part} is not beside {paths[0]}")
    searched = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    for entry in filter(None, searched):
        strangers = sorted(Path(entry).glob("libcudnn*.so*")) if Path(entry).is_dir() else []
        outside = [path for path in strangers if not inside(os.path.realpath(path))]
        if outside:
            support.fail(
                "cudnn_sublibraries",
                f"LD_LIBRARY_PATH holds another cuDNN ({outside[0]}) before the parts of "
                f"cuDNN {version}: sublibraries of two versions can mix",
                "remove that folder from LD_LIBRARY_PATH",
            )
    preloaded = os.environ.get("LD_PRELOAD", "")
    if "cudnn" in preloaded and len({os.path.realpath(p) for p in paths}) > 1:
        support.fail("loaded_twice", f"LD_PRELOAD adds another cuDNN: {preloaded}{said(notes)}")


def interference():
    """Settings that can put another library before the wheels' own."""
    names = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT")
    return [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]


def said(notes):
    return f" ({'; '.join(notes)})" if notes else ""


def inside(path):
    prefixes = (sys.prefix, support.EXPECTED.get("prefix") or sys.prefix)
    return any(path.startswith(os.path.realpath(prefix) + os.sep) for prefix in prefixes)


if __name__ == "__main__":
    support.main(check)
