"""Do slimmed libraries compute the same? Run on a machine with an NVIDIA GPU and PyTorch.

    python benchmarks/slim_operations.py --out evidence.json

Copies the installed torch and NVIDIA packages, slims the copy for the GPU at hand with
torchproof's own pruning, runs the same operations twice on the untouched copy and once on the
slimmed one, and compares the results bit by bit. Operations that differ between two untouched runs
prove nothing and are listed apart. Needs no package of torchproof's beyond Python's own library.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SPEED_TOLERANCE = 0.02
_BLOCK = 32 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpu", help="architecture to slim for (default: the GPU's own)")
    parser.add_argument("--operations", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.operations:
        asked.operations.write_text(json.dumps(run_operations()))
        return 0
    import torch

    major, minor = torch.cuda.get_device_capability()
    gpu = asked.gpu or f"sm_{major}{minor}"
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    site = Path(spec.origin).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        slim = Path(folder) / "slim"
        slim.mkdir()
        for name in ("torch", "nvidia", "triton"):
            if (site / name).is_dir():
                shutil.copytree(site / name, slim / name, symlinks=True)
        started = time.monotonic()
        libraries = prune_all(slim, gpu)
        pruning = time.monotonic() - started
        runs = {
            "full 1": child(None, Path(folder) / "1.json"),
            "full 2": child(None, Path(folder) / "2.json"),
            "slim": child(slim, Path(folder) / "3.json"),
        }
        sizes = compressed(site, slim, [one["name"] for one in libraries])
    evidence = compare(runs) | {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "kept": [gpu],
        "driver": driver(),
        "libraries": libraries,
        "pruning_seconds": round(pruning, 2),
        "compressed_bytes_zlib6": sizes,
    }
    asked.out.write_text(json.dumps(evidence, indent=1, sort_keys=True) + "\n")
    return 0 if evidence["verdict"] == "same" else 1


def prune_all(root: Path, gpu: str) -> list[dict[str, Any]]:
    found = sorted(
        path
        for path in root.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and (path.suffix == ".so" or ".so." in path.name)
    )
    with ProcessPoolExecutor() as pool:
        rows = pool.map(prune_one, found, [gpu] * len(found), [root] * len(found))
        return [row for row in rows if row["containers"] or row["untouched"]]


def prune_one(path: Path, gpu: str, root: Path) -> dict[str, Any]:
    from torchproof.assemble.layer.slim import Pruner

    pruner = Pruner([gpu], size=path.stat().st_size)
    draft = path.with_name(path.name + ".slim")
    with path.open("rb") as source, draft.open("wb") as target:
        while chunk := source.read(1 << 20):
            target.writelines(pruner.feed(chunk))
        target.writelines(pruner.finish())
    draft.chmod(path.stat().st_mode)
    draft.replace(path)
    counts = pruner.counts
    return {
        "name": str(path.relative_to(root)),
        "bytes": path.stat().st_size,
        "containers": counts.containers,
        "entries_kept": counts.kept,
        "entries_zeroed": counts.zeroed,
        "bytes_zeroed": counts.zeroed_bytes,
        "untouched": counts.untouched,
    }


def compressed(full: Path, slim: Path, names: list[str]) -> dict[str, int]:
    with ProcessPoolExecutor() as pool:
        return {
            label: sum(pool.map(deflated, *zip(*blocks(root, names), strict=True), chunksize=1))
            for label, root in (("full", full), ("slim", slim))
        }


def blocks(root: Path, names: list[str]) -> Iterator[tuple[Path, int]]:
    for name in names:
        path = root / name
        yield from ((path, start) for start in range(0, path.stat().st_size, _BLOCK))


def deflated(path: Path, start: int) -> int:
    with path.open("rb") as file:
        file.seek(start)
        return len(zlib.compress(file.read(_BLOCK), 6))


def child(site: Path | None, out: Path) -> dict[str, Any]:
    environment = dict(
        os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1"
    )
    if site is not None:
        environment["PYTHONPATH"] = str(site)
    command = [sys.executable, __file__, "--out", os.devnull, "--operations", str(out)]
    subprocess.run(command, env=environment, check=True)
    found: dict[str, Any] = json.loads(out.read_text())
    if site is not None:
        outside = [path for path in found["mapped"] if not path.startswith(str(site))]
        assert not outside, f"not slimmed: {outside}"
    found["mapped"] = len(found["mapped"])
    return found


def compare(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    first, second, slim = (runs[name]["results"] for name in ("full 1", "full 2", "slim"))
    unstable = [name for name in first if first[name]["digest"] != second[name]["digest"]]
    different = [
        name
        for name in first
        if name not in unstable and first[name]["digest"] != slim[name]["digest"]
    ]
    failed = [name for name in first if "error" in slim[name] or "error" in first[name]]
    speed = {name: run["bf16_tflops"] for name, run in runs.items()}
    full = (speed["full 1"] + speed["full 2"]) / 2
    slower = speed["slim"] < full * (1 - SPEED_TOLERANCE)
    return {
        "verdict": "different" if different or failed or slower else "same",
        "operations": len(first),
        "same": len(first) - len(unstable) - len(different) - len(failed),
        "different": different,
        "failed": {name: [first[name], slim[name]] for name in failed},
        "unstable_even_when_full": {
            name: {
                "full": first[name]["sum"],
                "again": second[name]["sum"],
                "slim": slim[name]["sum"],
            }
            for name in unstable
        },
        "speed": {"bf16_tflops": speed, "ratio": speed["slim"] / full},
        "libraries_mapped": runs["slim"]["mapped"],
        "names": sorted(first),
    }


def driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")[0]


def run_operations() -> dict[str, Any]:
    import torch

    torch.use_deterministic_algorithms(False)
    results: dict[str, Any] = {}
    for name, operation in operations().items():
        torch.manual_seed(0)
        try:
            results[name] = summary(operation())
        except Exception as error:
            results[name] = {
                "digest": "",
                "sum": 0.0,
                "error": f"{type(error).__name__}: {error}"[:300],
            }
    with Path("/proc/self/maps").open() as maps:
        paths = {line.split()[-1] for line in maps if ".so" in line}
    ours = re.compile(r".*/(?:site-packages|slim)/(?:torch|nvidia|triton)/.*")
    mapped = sorted(path for path in paths if ours.fullmatch(path))
    return {"results": results, "mapped": mapped, "bf16_tflops": speed()}


def summary(value: Any) -> dict[str, Any]:
    import torch

    tensors = (
        [value] if isinstance(value, torch.Tensor) else [one for one in value if one is not None]
    )
    hasher, total = hashlib.sha256(), 0.0
    for tensor in tensors:
        plain = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
        host = plain.contiguous().cpu()
        host = torch.view_as_real(host) if host.is_complex() else host
        hasher.update(
            host.view(torch.uint8).numpy().tobytes() if host.dim() else str(host.item()).encode()
        )
        total += float(host.to(torch.complex128).abs().sum().real)
    return {"digest": hasher.hexdigest(), "sum": total}


def speed() -> float:
    """Return bf16 matrix products per second as TFLOP/s: the median of 9 rounds."""
    import torch

    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rates = []
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(10):
            torch.mm(a, b)
        end.record()
        torch.cuda.synchronize()
        rates.append(10 * 2 * size**3 / begin.elapsed_time(end) / 1e9)
    return sorted(rates[3:])[4]


def operations() -> dict[str, Callable[[], Any]]:
    import torch
    import torch.nn.functional as F  # noqa: N812

    def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").to(dtype)

    found: dict[str, Callable[[], Any]] = {}
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64):
        short = str(dtype).removeprefix("torch.")
        found[f"matmul {short}"] = lambda d=dtype: rand(512, 384, dtype=d) @ rand(384, 640, dtype=d)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        short = str(dtype).removeprefix("torch.")
        found[f"bmm {short}"] = lambda d=dtype: torch.bmm(
            rand(8, 65, 33, dtype=d), rand(8, 33, 129, dtype=d)
        )
        found[f"linear gelu {short}"] = lambda d=dtype: F.gelu(
            F.linear(rand(64, 256, dtype=d), rand(512, 256, dtype=d), rand(512, dtype=d))
        )
        found[f"conv2d {short}"] = lambda d=dtype: F.conv2d(
            rand(4, 32, 64, 64, dtype=d), rand(64, 32, 3, 3, dtype=d), padding=1
        )
        found[f"attention {short}"] = lambda d=dtype: F.scaled_dot_product_attention(
            *(rand(2, 8, 256, 64, dtype=d) for _ in range(3))
        )
        found[f"attention causal {short}"] = lambda d=dtype: F.scaled_dot_product_attention(
            *(rand(2, 8, 256, 64, dtype=d) for _ in range(3)), is_causal=True
        )
        found[f"layer norm {short}"] = lambda d=dtype: F.layer_norm(
            rand(64, 1024, dtype=d), (1024,)
        )
        found[f"softmax {short}"] = lambda d=dtype: rand(64, 5000, dtype=d).softmax(-1)
        found[f"sum {short}"] = lambda d=dtype: rand(1000, 1000, dtype=d).sum(0)
    for kind in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH", "CUDNN_ATTENTION"):

        def attention(kind: str = kind) -> Any:
            from torch.nn.attention import SDPBackend, sdpa_kernel

            with sdpa_kernel(getattr(SDPBackend, kind)):
                return F.scaled_dot_product_attention(
                    *(rand(2, 8, 256, 64, dtype=torch.bfloat16) for _ in range(3))
                )

        found[f"attention by {kind.lower()}"] = attention
    for cell in ("LSTM", "GRU", "RNN"):
        found[cell.lower()] = lambda c=cell: getattr(torch.nn, c)(64, 128, 2).cuda()(
            rand(20, 8, 64)
        )[0]
    found |= {
        "conv1d": lambda: F.conv1d(rand(4, 16, 1000), rand(32, 16, 9)),
        "conv3d": lambda: F.conv3d(rand(2, 8, 16, 16, 16), rand(16, 8, 3, 3, 3)),
        "conv2d grouped": lambda: F.conv2d(rand(4, 32, 32, 32), rand(32, 1, 5, 5), groups=32),
        "conv2d channels last": lambda: F.conv2d(
            rand(4, 32, 64, 64, dtype=torch.half).to(memory_format=torch.channels_last),
            rand(64, 32, 3, 3, dtype=torch.half),
        ),
        "conv transpose2d": lambda: F.conv_transpose2d(
            rand(2, 16, 32, 32), rand(16, 8, 4, 4), stride=2
        ),
        "max pool": lambda: F.max_pool2d(rand(4, 8, 64, 64), 3, 2),
        "average pool": lambda: F.adaptive_avg_pool2d(rand(4, 8, 61, 67), 7),
        "interpolate": lambda: F.interpolate(rand(2, 3, 50, 50), scale_factor=2.5, mode="bicubic"),
        "grid sample": lambda: F.grid_sample(
            rand(2, 3, 32, 32), rand(2, 16, 16, 2).tanh(), align_corners=False
        ),
        "batch norm": lambda: F.batch_norm(rand(8, 32, 16, 16), None, None, training=True),
        "group norm": lambda: F.group_norm(rand(8, 32, 16, 16), 4),
        "embedding bag": lambda: F.embedding_bag(
            torch.randint(0, 100, (64, 10), device="cuda"), rand(100, 32)
        ),
        "cross entropy": lambda: F.cross_entropy(
            rand(256, 1000), torch.randint(0, 1000, (256,), device="cuda")
        ),
        "ctc loss": lambda: F.ctc_loss(
            rand(50, 4, 20).log_softmax(2),
            torch.randint(1, 20, (4, 10), device="cuda"),
            torch.full((4,), 50),
            torch.full((4,), 10),
        ),
        "fft": lambda: torch.fft.fft(rand(64, 1000)),
        "fft 2d": lambda: torch.fft.fft2(rand(8, 128, 96)),
        "rfft inverse": lambda: torch.fft.irfft(torch.fft.rfft(rand(64, 1024))),
        "stft": lambda: torch.view_as_real(
            torch.stft(
                rand(2, 8000),
                400,
                window=torch.hann_window(400, device="cuda"),
                return_complex=True,
            )
        ),
        "svd": lambda: torch.linalg.svdvals(rand(96, 64)),
        "qr": lambda: torch.linalg.qr(rand(64, 64))[1].abs().clone(),
        "cholesky": lambda: torch.linalg.cholesky(
            torch.eye(64, device="cuda") * 64 + (lambda a: a @ a.T)(rand(64, 64))
        ),
        "solve": lambda: torch.linalg.solve(rand(64, 64), rand(64, 8)),
        "eigh": lambda: torch.linalg.eigvalsh((lambda a: a + a.T)(rand(64, 64))),
        "lu": lambda: torch.linalg.lu_factor(rand(100, 100))[0],
        "inverse batched": lambda: torch.linalg.inv(rand(16, 32, 32)),
        "determinant": lambda: torch.linalg.slogdet(rand(16, 32, 32))[1],
        "sparse csr matmul": lambda: (
            (rand(200, 300).relu() - 1).relu().to_sparse_csr() @ rand(300, 64)
        ),
        "sparse coo matmul": lambda: torch.sparse.mm(
            (rand(200, 300) - 1).relu().to_sparse(), rand(300, 64)
        ),
        "semi-structured sparse": _semi_structured,
        "sort": lambda: rand(100_000).sort()[0],
        "topk": lambda: rand(64, 5000).topk(50)[0],
        "unique": lambda: torch.randint(0, 500, (10_000,), device="cuda").unique(),
        "cumsum": lambda: rand(64, 5000).cumsum(1),
        "histogram": lambda: torch.bincount(torch.randint(0, 64, (10_000,), device="cuda")),
        "gather": lambda: rand(100, 100).gather(1, torch.randint(0, 100, (100, 50), device="cuda")),
        "scatter add": lambda: torch.zeros(100, device="cuda").scatter_add(
            0, torch.randint(0, 100, (100_000,), device="cuda"), rand(100_000)
        ),
        "index add": lambda: torch.zeros(100, 32, device="cuda").index_add(
            0, torch.randint(0, 100, (5000,), device="cuda"), rand(5000, 32)
        ),
        "index select": lambda: rand(1000, 64).index_select(
            0, torch.randint(0, 1000, (300,), device="cuda")
        ),
        "nonzero": lambda: (rand(500, 500) > 1).nonzero() + 0,
        "einsum": lambda: torch.einsum("bij,bjk->ik", rand(8, 40, 50), rand(8, 50, 60)),
        "elementwise": lambda: (rand(10_000).sin() * rand(10_000).exp()).lgamma().nan_to_num(),
        "special functions": lambda: torch.special.erfinv(rand(10_000).tanh()),
        "random uniform": lambda: torch.rand(10_000, device="cuda"),
        "random normal": lambda: torch.randn(10_000, device="cuda"),
        "random permutation": lambda: torch.randperm(10_000, device="cuda"),
        "multinomial": lambda: torch.multinomial(torch.rand(64, 100, device="cuda"), 8),
        "dropout": lambda: F.dropout(rand(10_000), 0.3),
        "integer matmul": lambda: torch._int_mm(
            torch.randint(-9, 9, (64, 64), device="cuda", dtype=torch.int8),
            torch.randint(-9, 9, (64, 64), device="cuda", dtype=torch.int8),
        ),
        "fp8 matmul": _fp8,
        "training step": lambda: _training(torch.float32),
        "training step bf16": lambda: _training(torch.bfloat16),
        "optimizer fused adam": _adam,
        "cuda graph": _graph,
        "compiled": lambda: torch.compile(lambda x: (x.sin() + x.cos()).relu() @ x.T)(
            rand(128, 128)
        ),
        "compiled reduction": lambda: torch.compile(lambda x: x.softmax(-1).sum(0))(rand(256, 512)),
        "nccl all reduce": _nccl,
    }
    return found


def _semi_structured() -> Any:
    import torch
    from torch.sparse import to_sparse_semi_structured

    mask = torch.tensor([0, 0, 1, 1], device="cuda").tile(128, 32).bool()
    weight = to_sparse_semi_structured(
        torch.randn(128, 128, device="cuda", dtype=torch.half).masked_fill(~mask, 0)
    )
    return torch.mm(weight, torch.randn(128, 128, device="cuda", dtype=torch.half))


def _fp8() -> Any:
    import torch

    one = torch.tensor(1.0, device="cuda")
    a = torch.randn(256, 256, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(256, 256, device="cuda").to(torch.float8_e4m3fn)
    return torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _training(dtype: Any) -> Any:
    import torch

    model = (
        torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        .cuda()
        .to(dtype)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(
            model(torch.randn(32, 64, device="cuda", dtype=dtype)).float(),
            torch.randint(0, 10, (32,), device="cuda"),
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return list(model.parameters())


def _adam() -> Any:
    import torch

    weight = torch.nn.Parameter(torch.randn(1000, device="cuda"))
    optimizer = torch.optim.AdamW([weight], fused=True)
    for _ in range(3):
        (weight**2).sum().backward()
        optimizer.step()
    return weight


def _graph() -> Any:
    import torch

    x = torch.randn(64, 64, device="cuda")
    torch.mm(x, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.mm(x, x).relu()
    graph.replay()
    return y.clone()


def _nccl() -> Any:
    import torch
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        value = torch.arange(1000.0, device="cuda")
        dist.all_reduce(value)
        torch.cuda.synchronize()
        dist.destroy_process_group()
    return value


if __name__ == "__main__":
    raise SystemExit(main())
