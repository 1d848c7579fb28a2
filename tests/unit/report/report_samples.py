"""A report with every verdict in it: the ten default cells, an NCCL override and a slim image."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from torchproof.errors import CellError, IndexUnreachableError
from torchproof.model.cell import Cell
from torchproof.model.lock import LayerName, Lock, LockedBase, LockedWheel, Override
from torchproof.model.results import (
    Built,
    Finding,
    Gpu,
    Host,
    ImageLayer,
    Level,
    NotTried,
    Outcome,
    ProbeResult,
    State,
    SubjectKind,
)
from torchproof.report.convert import make_report, report_cell
from torchproof.report.models import AnswerModel, CellModel, DeclaredHostModel, ReportModel
from torchproof.upstream.host_fit import Fit, HostRule
from torchproof.verdict.decide import decide, from_error
from torchproof.verdict.policy import Policy, RequiredProbe

AT = "2026-11-30T09:41:07Z"
SUITE = "sha256:" + hashlib.sha256(b"suite").hexdigest()
H200 = Gpu(model="NVIDIA H200", arch="sm_90", memory=150_754_820_096)
GPU_HOST = Host(engine="docker 28.3.3", driver="570.172.08", gpus=(H200, H200))
CPU_HOST = Host(engine="docker 20.10.24", driver=None)
VENV_HOST = Host(engine="venv", driver=None)

POLICY = Policy(
    probes=(
        RequiredProbe(name="versions"),
        RequiredProbe(name="torchrun"),
        RequiredProbe(name="nccl_init", gpus=2),
        RequiredProbe(name="ddp_step", gpus=2),
        RequiredProbe(name="allreduce_bandwidth", gpus=2),
    )
)

SIZES = {
    LayerName.BASE: 81_204_122,
    LayerName.PYTHON: 9_840_331,
    LayerName.CUDA: 1_530_228_417,
    LayerName.CUDNN: 571_002_338,
    LayerName.TORCH: 977_310_552,
    LayerName.NCCL: 201_317_204,
    LayerName.CONFIG: 4_122,
}


def sha(*parts: str) -> str:
    return "sha256:" + hashlib.sha256("/".join(parts).encode()).hexdigest()


def lock_of(cell: Cell, *, cudnn: str, nccl: str, triton: str, floor: str) -> Lock:
    return Lock(
        cell=cell.id,
        torch=cell.torch,
        cuda=cell.cuda,
        cudnn=cudnn,
        nccl=cell.nccl or nccl,
        triton=triton,
        python=cell.python,
        platform=cell.platform,
        base=LockedBase(bootstrap="debian/bookworm"),
        wheels=(
            LockedWheel(
                name="torch",
                version=cell.torch,
                filename=f"torch-{cell.torch}-cp311-cp311-manylinux_2_28_x86_64.whl",
                sha256=sha(cell.torch, cell.cuda).removeprefix("sha256:"),
                size=821_174_704,
                index="pypi",
                layer=LayerName.TORCH,
            ),
        ),
        overrides=(Override(name="nvidia-nccl-cu12", pinned=nccl, chosen=cell.nccl),)
        if cell.nccl
        else (),
        gpus=cell.gpus,
        archs=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
        driver_floor=floor,
    )


LOCK_27 = lock_of(
    Cell(torch="2.7.1", cuda="cu126"),
    cudnn="9.5.1.17",
    nccl="2.26.2",
    triton="3.3.1",
    floor="525.60.13",
)
LOCK_29 = lock_of(
    Cell(torch="2.9.1", cuda="cu128"),
    cudnn="9.10.2.21",
    nccl="2.27.5",
    triton="3.5.1",
    floor="525.60.13",
)


def image(cell: Cell, *, seconds: float = 51.4, reused: bool = False) -> Built:
    """An image whose layers are equal below what the cell changes."""
    layers = []
    for name, size in SIZES.items():
        key = [name.value]
        if name not in (LayerName.BASE, LayerName.PYTHON):
            key += [cell.cuda, *cell.gpus]
        if name in (LayerName.TORCH, LayerName.NCCL, LayerName.CONFIG):
            key.append(cell.torch)
        if name in (LayerName.NCCL, LayerName.CONFIG):
            key.append(cell.nccl or "pinned")
        scale = 0.36 if cell.gpus and size > 100_000_000 else 1
        layers.append(ImageLayer(name=name.value, digest=sha(*key), size=int(size * scale)))
    return Built(
        cell=cell.id,
        subject=SubjectKind.IMAGE,
        ref=f"torchproof:{cell.id}",
        digest=sha("image", cell.id),
        size=7_204_118_733,
        layers=tuple(layers),
        plan_hash=sha("plan", cell.id),
        seconds=seconds,
        reused=reused,
    )


def environment(cell: Cell) -> Built:
    return Built(
        cell=cell.id,
        subject=SubjectKind.ENVIRONMENT,
        ref=f"build/venv/{cell.id}",
        digest=sha("venv", cell.id),
        size=5_602_118_733,
        layers=(),
        plan_hash=sha("plan", cell.id),
        seconds=42.0,
    )


def probe(  # noqa: PLR0917
    name: str,
    outcome: Outcome = Outcome.PASS,
    code: str = "ok",
    seconds: float = 3.2,
    message: str = "",
    fix: str = "",
    metrics: Mapping[str, object] | None = None,
    host: Host | None = None,
    required: bool = True,
) -> ProbeResult:
    return ProbeResult(
        name=name,
        outcome=outcome,
        code=code,
        seconds=seconds,
        message=message,
        fix=fix,
        metrics=metrics or {},
        host=host,
        required=required,
        log=f"cells/logs/{name}.log",
    )


def gpu_probes() -> list[ProbeResult]:
    """All five pass on two GPUs."""
    sweep = [
        {"bytes": 2**20, "algbw_gb_s": 38.71, "busbw_gb_s": 38.71, "median_ms": 0.027},
        {"bytes": 2**25, "algbw_gb_s": 271.4, "busbw_gb_s": 271.4, "median_ms": 0.124},
        {"bytes": 2**30, "algbw_gb_s": 391.8, "busbw_gb_s": 391.8, "median_ms": 2.741},
    ]
    return [
        probe(
            "versions",
            seconds=4.1,
            message="torch, CUDA, cuDNN and NCCL are those of the lock",
            metrics={"torch": "2.9.1+cu128", "cuda": "12.8", "cudnn": 91002, "nccl": "2.27.5"},
        ),
        probe("torchrun", seconds=7.9, message="launched 2 processes with the image's python"),
        probe("nccl_init", seconds=9.3, message="2 ranks", metrics={"ranks": 2}),
        probe(
            "ddp_step",
            seconds=12.6,
            message="gradients equal the reference over the joined batch",
            metrics={"ranks": 2, "max_abs_diff": 2.9e-7, "shares_disjoint": True},
        ),
        probe(
            "allreduce_bandwidth",
            seconds=18.0,
            message="sums right at every size",
            metrics={"transport": "NVLink", "peak_busbw_gb_s": 391.8, "sweep": sweep},
        ),
    ]


def cpu_probes() -> list[ProbeResult]:
    """What a machine without GPUs can prove."""
    want = "needs 2 GPUs, this host has none"
    return [
        *gpu_probes()[:2],
        probe("nccl_init", Outcome.SKIP, "no_gpu", 3.8, f"{want}; libnccl.so.2 loads (2.27.5)"),
        probe("ddp_step", Outcome.SKIP, "no_gpu", 0.1, want, "run it on a host with 2 GPUs"),
        probe("allreduce_bandwidth", Outcome.SKIP, "no_gpu", 0.1, want),
        probe(
            "ddp_step[gloo]",
            seconds=11.0,
            message="gradients equal the reference over the joined batch",
            metrics={"ranks": 2, "max_abs_diff": 0.0},
            required=False,
        ),
    ]


def judged(
    cell: Cell,
    built: Built,
    probes: Sequence[ProbeResult],
    host: Host,
    *,
    lock: Lock,
    findings: Sequence[Finding] | None = (),
    at: str = AT,
    suite: str = SUITE,
) -> CellModel:
    verdict = decide(
        built=built,
        findings=findings,
        probes=probes,
        policy=POLICY,
        suite_hash=suite,
        host=host,
        at=at,
    )
    return report_cell(
        cell, verdict, lock=lock, built=built, policy=POLICY, build_log=f"cells/{cell.id}/build.log"
    )


def unavailable(cell: Cell, reason: str, source: str, *nearest: str) -> CellModel:
    return report_cell(
        cell,
        NotTried(state=State.UNAVAILABLE, reason=reason, source=source, nearest=nearest),
        policy=POLICY,
    )


def blocked(cell: Cell) -> CellModel:
    error = IndexUnreachableError(
        f"index pytorch/{cell.cuda} does not answer: connection timed out after 10 s",
        fix="check the network, or give a mirror under `indexes:` in matrix.yaml",
    )
    verdict = from_error(
        error,
        subject=SubjectKind.LOCK,
        digest="",
        suite_hash=SUITE,
        host=GPU_HOST,
        at=AT,
    )
    return report_cell(cell, verdict, policy=POLICY)


TEST_INFRA = "pytorch/test-infra@30ee1aaa tools/scripts/generate_binary_build_matrix.py"


def default_cells(host: Host = GPU_HOST) -> list[CellModel]:
    """The ten default cells on a machine that reaches only the package index."""
    probes = gpu_probes() if host.gpus else cpu_probes()
    cu126, cu128 = Cell(torch="2.7.1", cuda="cu126"), Cell(torch="2.9.1", cuda="cu128")
    make = environment if host is VENV_HOST else image
    return [
        blocked(Cell(torch="2.7.1", cuda="cu118")),
        unavailable(
            Cell(torch="2.7.1", cuda="cu121"),
            "PyTorch never published 2.7.1 for CUDA 12.1; that index ends at 2.5.1",
            TEST_INFRA,
            "2.7.1-cu126",
        ),
        judged(cu126, make(cu126), probes, host, lock=LOCK_27),
        blocked(Cell(torch="2.7.1", cuda="cu128")),
        unavailable(
            Cell(torch="2.7.1", cuda="cu130"),
            "PyTorch never published 2.7.1 for CUDA 13.0; its first release is 2.9.0",
            TEST_INFRA,
            "2.7.1-cu128",
            "2.9.1-cu130",
        ),
        unavailable(
            Cell(torch="2.9.1", cuda="cu118"),
            "PyTorch never published 2.9.1 for CUDA 11.8, and its CMake refuses CUDA below 12.0",
            "https://github.com/pytorch/pytorch/issues/147383",
            "2.7.1-cu118",
            "2.9.1-cu126",
        ),
        unavailable(
            Cell(torch="2.9.1", cuda="cu121"),
            "PyTorch never published 2.9.1 for CUDA 12.1; that index ends at 2.5.1",
            TEST_INFRA,
            "2.9.1-cu126",
        ),
        blocked(Cell(torch="2.9.1", cuda="cu126")),
        judged(cu128, make(cu128), probes, host, lock=LOCK_29),
        blocked(Cell(torch="2.9.1", cuda="cu130")),
    ]


def every_verdict() -> ReportModel:
    """A report that shows all six verdicts, an override, a slim image and declared hosts."""
    override = Cell(torch="2.9.1", cuda="cu128", nccl="2.30.7")
    slim = Cell(torch="2.9.1", cuda="cu128", gpus=("sm_90",))
    old = Cell(torch="2.7.1", cuda="cu126", nccl="2.21.5")
    py312 = Cell(torch="2.9.1", cuda="cu128", python="3.12")
    finding = Finding(
        rule="link.undefined",
        level=Level.ERROR,
        message="libtorch_cuda.so needs ncclCommInitRankScalable, libnccl.so.2 (2.21.5) lacks it",
        fix="choose NCCL 2.23.4 or newer for torch 2.7.1 (`python build.py compat --torch 2.7.1`)",
        where="/opt/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so",
    )
    size = Finding(
        rule="size.drift",
        level=Level.NOTE,
        message="7.2 GB, 1.1 % more than in the last report",
        where="image",
    )
    cells = default_cells()
    cells[2] = judged(
        Cell(torch="2.7.1", cuda="cu126"),
        image(Cell(torch="2.7.1", cuda="cu126"), seconds=0.4, reused=True),
        gpu_probes(),
        GPU_HOST,
        lock=LOCK_27,
        findings=[size],
    )
    cells += [
        judged(override, image(override), cpu_probes(), CPU_HOST, lock=override_lock(override)),
        judged(
            slim,
            image(slim),
            [
                *gpu_probes()[:3],
                probe(
                    "ddp_step",
                    Outcome.FAIL,
                    "gradient_mismatch",
                    12.6,
                    "rank 1: gradient of layer.2.weight differs from the reference by 0.31",
                    "check what changed the device code of libtorch_cuda.so",
                    {"ranks": 2, "max_abs_diff": 0.31},
                ),
                gpu_probes()[4],
            ],
            GPU_HOST,
            lock=LOCK_29,
        ),
        judged(old, image(old), [], GPU_HOST, lock=override_lock(old), findings=[finding, size]),
        broken_wheel(py312),
        report_cell(
            Cell(torch="2.9.1", cuda="cu126", python="3.12"),
            NotTried(state=State.EXCLUDED, reason="no user of ours is on Python 3.12 yet"),
        ),
    ]
    tried = [cell for cell in cells if cell.image]
    hosts = [
        DeclaredHostModel(
            name=name,
            driver=driver,
            gpu=gpu,
            count=count,
            answers=[
                AnswerModel(
                    cell=cell.id,
                    answer=fit,
                    rule=rule,
                    reason=reason,
                    change=["driver 525.60.13 or newer"] if fit is Fit.NO else [],
                )
                for cell in tried
            ],
        )
        for name, driver, gpu, count, fit, rule, reason in (
            (
                "hgx",
                "570.172.08",
                "H200",
                8,
                Fit.YES,
                HostRule.TOOLKIT_DRIVER,
                "driver 570.172.08 knows this CUDA",
            ),
            (
                "old-a100",
                "535.104.05",
                "A100",
                4,
                Fit.MINOR,
                HostRule.MINOR_VERSION,
                "driver 535.104.05 is not older than 525.60.13",
            ),
            (
                "t4-farm",
                "470.57.02",
                "T4",
                1,
                Fit.NO,
                HostRule.MINOR_VERSION,
                "driver 470.57.02 is older than 525.60.13",
            ),
        )
    ]
    return make_report(
        cells,
        host=GPU_HOST,
        suite_hash=SUITE,
        generated_at=AT,
        hosts=hosts,
        notes=["the live index pytorch/cu128 lists 2.9.1 for cp315, which the data does not know"],
    )


def override_lock(cell: Cell) -> Lock:
    return lock_of(cell, cudnn="9.10.2.21", nccl="2.27.5", triton="3.5.1", floor="525.60.13")


def broken_wheel(cell: Cell) -> CellModel:
    """A cell that failed before anything was built."""
    verdict = from_error(
        CellError("torch-2.9.1-cp312.whl has sha256 91454dcf…, the lock says 5be3a1f0…"),
        subject=SubjectKind.LOCK,
        digest=sha("lock", cell.id),
        suite_hash=SUITE,
        host=GPU_HOST,
        at=AT,
    )
    return report_cell(cell, verdict, policy=POLICY)
