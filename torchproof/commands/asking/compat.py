"""`compat`: which NCCL or cuDNN may replace the one that torch pins."""

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
from torchproof.pick.symbols import Compatibility, Library, Wish, compatible
from torchproof.resolve.survey import indexes_of
from torchproof.upstream.facts import load_facts

Torch = Annotated[str, typer.Option("--torch", metavar="VERSION", help="A release, like 2.7.1.")]
Nccl = Annotated[bool, typer.Option("--nccl", help="Wheels of NCCL.")]
Cudnn = Annotated[bool, typer.Option("--cudnn", help="Wheels of cuDNN.")]
Cuda = Annotated[
    str, typer.Option("--cuda", metavar="CUDA", help="The build, like cu128; else the default one.")
]
Python = Annotated[str, typer.Option("--python", metavar="VERSION", help="Python of the wheel.")]
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
    """Print which released NCCL or cuDNN wheels link with a torch, from symbols."""
    if nccl == cudnn:
        raise InputError("give either --nccl or --cudnn", fix="compat --torch 2.7.1 --nccl")
    facts = load_facts()
    if matrix.is_file():
        indexes = indexes_of(load_matrix(matrix), facts)
    else:
        indexes = Indexes(pytorch=facts.pytorch_url)
    found = compatible(
        Library.NCCL if nccl else Library.CUDNN,
        Wish(torch=torch, cuda=cuda, python=python, platform=platform),
        indexes,
        cache_dir(),
    )
    if as_json:
        print(json.dumps(_plain(found), indent=2))  # noqa: T201
    else:
        _show(found)
    return 0


def _plain(found: Compatibility) -> dict[str, object]:
    return {
        "torch": found.torch,
        "cuda": found.cuda,
        "package": found.package,
        "floor": found.floor,
        "needs": list(found.needs),
        "fetched_bytes": found.fetched,
        "candidates": [
            {
                "version": one.version,
                "links": one.links,
                "reason": one.reason,
                "pinned": one.pinned,
            }
            for one in found.candidates
        ],
    }


def _show(found: Compatibility) -> None:
    out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    for one in found.candidates:
        mark = "links" if one.links else "no   "
        pin = "  (the one torch pins)" if one.pinned else ""
        out.print(f"{mark}  {one.version:14}{pin}{one.reason}")
    floor = f"from {found.floor} on" if found.floor else "none of the newest"
    out.print(
        f"torch {found.torch} ({found.cuda}) links with {found.package} {floor}; "
        f"{found.fetched / 1e6:.1f} MB read"
    )
