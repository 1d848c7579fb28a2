"""`pick`: which image of the matrix runs on a driver and GPU, or why none does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from torchproof.commands.options import AsJson, MatrixFile
from torchproof.errors import Exit
from torchproof.matrix.expand import DEFAULT
from torchproof.pick.candidates import candidates
from torchproof.pick.rank import Considered, Picked, PickRequest, check_python, check_torch, pick
from torchproof.upstream.facts import load_facts
from torchproof.upstream.gpus import gpu_table
from torchproof.upstream.host_fit import parse_driver

Torch = Annotated[
    str, typer.Option("--torch", metavar="VERSION", help="torch version: 2.9 or 2.9.1.")
]
DriverVersion = Annotated[
    str,
    typer.Option(
        "--driver", metavar="VERSION", help="NVIDIA driver: 535.104.05, 550.90 or a branch (R550)."
    ),
]
Gpus = Annotated[
    list[str],
    typer.Option(
        "--gpu",
        metavar="GPU",
        help="GPU: A100, sm_90, or the name that NVML reports. May be repeated.",
    ),
]
Python = Annotated[str, typer.Option("--python", metavar="VERSION", help="Python version: 3.11.")]
Reports = Annotated[
    Path, typer.Option("--reports", metavar="DIR", help="Folder of the last report.")
]


def run(
    *,
    torch: Torch,
    driver: DriverVersion,
    gpu: Gpus,
    python: Python = "",
    reports: Reports = Path("reports"),
    as_json: AsJson = False,
    matrix: MatrixFile = DEFAULT,
) -> int:
    """Name the best tag for a torch, driver and GPU; exit 1 with the reasons if none fits."""
    facts, table = load_facts(), gpu_table()
    names = [name.strip() for item in gpu for name in item.split(",") if name.strip()] or [""]
    request = PickRequest(
        torch=check_torch(torch),
        driver=parse_driver(driver),
        gpus=tuple(table.find(name) for name in names),
        python=check_python(python),
    )
    picked = pick(candidates(matrix, reports, facts), request, facts)
    if as_json:
        print(json.dumps(_as_json(picked), indent=2))  # noqa: T201
    else:
        _print(picked, request)
    return int(Exit.OK if picked.best else Exit.CELL_FAILED)


def _as_json(picked: Picked) -> dict[str, Any]:
    best = picked.best
    return {
        "tag": best.candidate.cell if best else None,
        "image": (best.candidate.ref or None) if best else None,
        "digest": (best.candidate.digest or None) if best else None,
        "verdict": best.candidate.state if best else None,
        "fit": best.answer.fit if best and best.answer else None,
        "reason": best.answer.reason if best and best.answer else "nothing in the matrix fits",
        "source": best.answer.source if best and best.answer else "",
        "change": list(picked.change),
        "considered": [_considered_json(item) for item in picked.considered],
    }


def _considered_json(item: Considered) -> dict[str, Any]:
    return {
        "id": item.candidate.cell,
        "verdict": item.candidate.state,
        "fits": item.fits,
        "fit": item.answer.fit if item.answer else None,
        "rule": item.answer.rule if item.answer else None,
        "reason": item.against or (item.answer.reason if item.answer else ""),
    }


def _print(picked: Picked, request: PickRequest) -> None:
    out = Console(highlight=False, soft_wrap=True, markup=False)
    best = picked.best
    if best is None:
        gpus = ", ".join(gpu.name for gpu in request.gpus)
        out.print(f"no image fits torch {request.torch}, driver {request.driver.text}, {gpus}")
        for item in picked.considered:
            out.print(f"  {item.candidate.cell}: {item.against}")
        if picked.change:
            out.print("what would change it:")
        for line in picked.change:
            out.print(f"  - {line}")
        return
    out.print(best.candidate.cell)
    if best.candidate.ref:
        out.print(f"  image: {best.candidate.ref} {best.candidate.digest}".rstrip())
    proof = best.candidate.reason or "not built yet; run `python build.py matrix`"
    out.print(f"  verdict: {best.candidate.state} ({proof})")
    if best.answer is not None:
        out.print(f"  runs there: {best.answer.fit}: {best.answer.reason}")
        out.print(f"  source: {best.answer.source}")
