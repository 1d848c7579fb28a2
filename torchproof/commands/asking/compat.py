"""`compat`: which NCCL or cuDNN wheels can replace the one that torch pins."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from torchproof.commands.options import AsJson, MatrixFile
from torchproof.errors import InputError
from torchproof.index.indexes import Indexes, cache_dir
from torchproof.matrix.expand import DEFAULT, load_matrix
from torchproof.model.platforms import AMD64
from torchproof.pick.symbols import Compatibility, Library, LinkQuery, compatible
from torchproof.resolve.survey import indexes_of
from torchproof.upstream.facts import load_facts

Torch = Annotated[str, typer.Option("--torch", metavar="VERSION", help="torch release: 2.7.1.")]
Nccl = Annotated[bool, typer.Option("--nccl", help="Check NCCL wheels.")]
Cudnn = Annotated[bool, typer.Option("--cudnn", help="Check cuDNN wheels.")]
Cuda = Annotated[
    str, typer.Option("--cuda", metavar="CUDA", help="CUDA build: cu128. Default: torch's own.")
]
Python = Annotated[
    str, typer.Option("--python", metavar="VERSION", help="Python version of the wheel.")
]
Platform = Annotated[str, typer.Option("--platform", help="linux/amd64 or linux/arm64.")]


def run(
    torch: Torch,
    nccl: Nccl = False,
    cudnn: Cudnn = False,
    cuda: Cuda = "",
    python: Python = "3.11",
    platform: Platform = AMD64,
    as_json: AsJson = False,
    matrix: MatrixFile = DEFAULT,
) -> int:
    """Print which released NCCL or cuDNN wheels link with a torch, judged by their symbols."""
    if nccl == cudnn:
        raise InputError("give either --nccl or --cudnn", fix="compat --torch 2.7.1 --nccl")
    facts = load_facts()
    if matrix.is_file():
        indexes = indexes_of(load_matrix(matrix), facts)
    else:
        indexes = Indexes(pytorch=facts.pytorch_url)
    found = compatible(
        Library.NCCL if nccl else Library.CUDNN,
        LinkQuery(torch=torch, cuda=cuda, python=python, platform=platform),
        indexes,
        cache_dir(),
    )
    if as_json:
        print(json.dumps(_as_json(found), indent=2))  # noqa: T201
    else:
        _print(found)
    return 0


def _as_json(found: Compatibility) -> dict[str, object]:
    return {
        "torch": found.torch,
        "cuda": found.cuda,
        "package": found.package,
        "floor": found.floor,
        "needs": list(found.needs),
        "fetched_bytes": found.fetched,
        "candidates": [
            {
                "version": wheel.version,
                "links": wheel.links,
                "reason": wheel.reason,
                "pinned": wheel.pinned,
            }
            for wheel in found.candidates
        ],
    }


def _print(found: Compatibility) -> None:
    out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    for wheel in found.candidates:
        mark = "links" if wheel.links else "no   "
        pin = "  (the one torch pins)" if wheel.pinned else ""
        out.print(f"{mark}  {wheel.version:14}{pin}{wheel.reason}")
    links = (
        f"links with {found.package} {found.floor} and newer"
        if found.floor
        else f"does not link with the newest {found.package}"
    )
    out.print(f"torch {found.torch} ({found.cuda}) {links}; {found.fetched / 1e6:.1f} MB read")
