"""`plan`: the state of every cell before a run. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from torchproof.commands.inputs import load_inputs
from torchproof.commands.options import AsJson, MatrixFile, Only
from torchproof.matrix.expand import DEFAULT, match_ids
from torchproof.run.plan_table import PlanRow, plan_rows


def run(only: Only = None, as_json: AsJson = False, matrix: MatrixFile = DEFAULT) -> int:
    """Show every cell: state, reason, layers, bytes. Changes nothing."""
    inputs = load_inputs(matrix)
    cells = inputs.survey()
    names = set(match_ids([item.id for item in cells], only))
    rows = plan_rows((item for item in cells if item.id in names), inputs.facts)
    if as_json:
        print(json.dumps({"cells": [_row_json(row) for row in rows]}, indent=2))  # noqa: T201
    else:
        _print(rows)
    return 0


def _row_json(row: PlanRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "torch": row.torch,
        "cuda": row.cuda,
        "cudnn": row.cudnn,
        "nccl": row.nccl,
        "python": row.python,
        "state": row.state,
        "reason": row.reason,
        "source": row.source,
        "nearest": list(row.nearest),
        "fix": row.fix,
        "layers": [
            {
                "name": layer.name,
                "key": layer.key,
                "bytes": layer.download_bytes,
                "wheels": len(layer.wheels),
            }
            for layer in row.layers
        ],
        "bytes": row.bytes,
    }


def _print(rows: Sequence[PlanRow]) -> None:
    out = Console(highlight=False, soft_wrap=True, markup=False)
    width = max((len(row.id) for row in rows), default=0)
    for row in rows:
        versions = {"cuDNN": row.cudnn, "NCCL": row.nccl, "Python": row.python}
        pins = "  ".join(f"{name} {version}" for name, version in versions.items() if version)
        size = f"  {row.bytes / 1e9:.2f} GB of wheels" if row.bytes is not None else ""
        out.print(f"{row.id:{width}}  {row.state:11}  {pins}{size}")
        lines = {
            "": row.reason,
            "nearest: ": ", ".join(row.nearest),
            "source: ": row.source if row.nearest else "",
            "fix: ": row.fix,
            "layers: ": " → ".join(layer.name for layer in row.layers),
        }
        for title, text in lines.items():
            if text:
                out.print(f"    {title}{text}")
