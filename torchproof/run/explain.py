"""Why a cell has its verdict, in plain lines: reason, source, remedy, evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from torchproof.model.results import MEANINGS, Level, Outcome, State
from torchproof.report.models import CellModel, FindingModel, ProbeModel
from torchproof.run.plan_table import PlanRow


def explain_row(row: PlanRow) -> list[str]:
    """Explain a cell that no run has reported on."""
    return [
        f"{row.id}: {row.state}: {MEANINGS[row.state]}",
        *_lines("why", row.reason),
        *_lines("source", row.source),
        *_lines("nearest", ", ".join(row.nearest)),
        *_lines("fix", row.fix or _next_step(row.state)),
    ]


def explain_cell(cell: CellModel) -> list[str]:
    """Explain a cell of a report."""
    lines = [
        f"{cell.id}: {cell.verdict}: {MEANINGS[cell.verdict]}",
        *_lines("why", cell.reason),
        *_lines("source", cell.source),
        *_lines("nearest", ", ".join(cell.nearest)),
        *_lines("fix", cell.fix or _next_step(cell.verdict)),
    ]
    for note in cell.notes:
        lines += _lines("note", note)
    for item in cell.overrides:
        lines += _lines("override", f"{item.name} {item.chosen} instead of {item.pinned}")
    if cell.evidence is not None:
        evidence = cell.evidence
        gpus = ", ".join(gpu.model for gpu in evidence.host.gpus) or "no GPU"
        driver = f"driver {evidence.host.driver}" if evidence.host.driver else "no driver"
        lines += _lines("evidence", f"{evidence.subject} {evidence.digest}")
        lines += _lines("", f"{evidence.at} on {evidence.host.engine}, {gpus}, {driver}")
        lines += _lines("", f"probe suite {evidence.suite_hash}")
    for finding in cell.audit:
        if finding.outcome in (Level.ERROR, Level.WARNING):
            lines += _finding(finding)
    for probe in cell.probes:
        if probe.outcome is not Outcome.PASS:
            lines += _probe(probe)
    return lines


def _next_step(state: State) -> str:
    match state:
        case State.UNPROVEN:
            return (
                "run `make matrix` on a machine with what is missing (say, two GPUs), then merge: "
                "`python build.py report --from DIR`"
            )
        case State.PLANNED:
            return "run `make matrix`"
        case _:
            return ""


def _finding(finding: FindingModel) -> Iterator[str]:
    where = f" ({finding.where})" if finding.where else ""
    yield from _lines("audit", f"{finding.outcome} {finding.rule}: {finding.message}{where}")
    yield from _lines("", f"fix: {finding.fix}" if finding.fix else "")


def _probe(probe: ProbeModel) -> Iterator[str]:
    need = "required" if probe.required else "optional"
    message = f": {probe.message}" if probe.message else ""
    yield from _lines("probe", f"{probe.name} ({need}) {probe.outcome}, {probe.code}{message}")
    yield from _lines("", f"fix: {probe.fix}" if probe.fix else "")
    yield from _lines("", f"log: {probe.log}" if probe.log else "")


def _lines(title: str, text: str) -> Iterator[str]:
    for line in filter(None, map(str.rstrip, text.splitlines())):
        yield f"  {title:9} {line}"
        title = ""
