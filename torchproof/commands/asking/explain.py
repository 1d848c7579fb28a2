"""`explain`: why a cell has its verdict, with sources and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from torchproof.commands.inputs import load_inputs
from torchproof.commands.options import MatrixFile
from torchproof.matrix.expand import DEFAULT, match_ids
from torchproof.report import read_report
from torchproof.report.files import REPORT
from torchproof.run.explain import explain_cell, explain_row
from torchproof.run.plan_table import plan_rows


def run(
    cell: Annotated[str, typer.Argument(help="Cell id, its beginning, or a glob.")],
    matrix: MatrixFile = DEFAULT,
    reports: Annotated[Path, typer.Option(help="Folder of the last run's report.")] = Path(
        "reports"
    ),
) -> int:
    """Say why a cell has its verdict: reason, source, evidence, and what to do.

    The last report answers; a cell that is not in it is explained from the plan.
    """
    out = Console(highlight=False, soft_wrap=True, markup=False)
    reported = (
        {item.id: item for item in read_report(reports).cells}
        if (reports / REPORT).exists()
        else {}
    )
    inputs = load_inputs(matrix)
    cells = inputs.survey()
    names = match_ids([*dict.fromkeys([*(item.id for item in cells), *reported])], cell)
    rows = {row.id: row for row in plan_rows((i for i in cells if i.id in names), inputs.facts)}
    for name in names:
        lines = explain_cell(reported[name]) if name in reported else explain_row(rows[name])
        out.print("\n".join(lines))
    return 0
