"""`report`: render the report's files again, or merge the reports of several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchproof.errors import Exit
from torchproof.model.results import State
from torchproof.report import merge, read_report, summary, write_reports
from torchproof.report.logs import gather_logs
from torchproof.report.text import uncounted


def run(
    sources: Annotated[
        list[Path] | None,
        typer.Option("--from", help="Reports folder (or report.json) of a run; repeat to merge."),
    ] = None,
    reports: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("reports"),
) -> int:
    """Render the report again; with --from, merge the results of several machines or shards."""
    read = [(_folder(source), read_report(source)) for source in sources or [reports]]
    report = merge(gather_logs(read, reports))
    write_reports(reports, report)
    typer.echo(summary(report))
    for line in uncounted(report):
        typer.echo(line)
    typer.echo(f"report: {reports / 'index.html'}")
    failed = any(cell.verdict is State.FAILED for cell in report.cells)
    return int(Exit.CELL_FAILED if failed else Exit.OK)


def _folder(source: Path) -> Path:
    return source if source.is_dir() else source.parent
