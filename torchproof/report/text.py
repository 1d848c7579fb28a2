"""The report as text: report.md for merge requests and job summaries, a table for a terminal."""

from __future__ import annotations

from tabulate import tabulate

from torchproof.model.results import Level, Outcome, State, SubjectKind
from torchproof.model.versions import cuda_version, minor_of
from torchproof.report import words
from torchproof.report.models import CellModel, ReportModel

MARKS = {
    State.VERIFIED: "✔",
    State.FAILED: "✖",
    State.UNPROVEN: "◐",
    State.BLOCKED: "⏸",
    State.UNAVAILABLE: "–",
    State.EXCLUDED: "⊘",
}
"""A sign beside the word, never instead of it."""


def summary(report: ReportModel, *, width: int = 100) -> str:
    """Return the table of cells and verdicts that ends a run, and a line that counts them.

    `width` is the terminal's, in columns; reasons are wrapped to it.
    """
    room = max(24, width - max((len(cell.id) for cell in report.cells), default=0) - 20)
    table = tabulate(
        [
            (words.one_line(cell.id), _verdict(cell), words.one_line(_why(cell)))
            for cell in report.cells
        ],
        headers=("cell", "verdict", "reason"),
        tablefmt="simple",
        maxcolwidths=[None, None, room],
        disable_numparse=True,
    )
    lines = [table, "", counts(report)]
    if built_nothing(report):
        lines.append("no images were built: the probes ran in virtual environments")
    return "\n".join(lines)


def counts(report: ReportModel) -> str:
    """`10 cells: 2 unproven, 4 blocked, 4 unavailable`."""
    found = [
        f"{number} {state}"
        for state in words.VERDICTS
        if (number := sum(cell.verdict is state for cell in report.cells))
    ]
    total = len(report.cells)
    return f"{total} cell{'' if total == 1 else 's'}: {', '.join(found) or 'none'}"


def built_nothing(report: ReportModel) -> bool:
    """Tell whether there is evidence about environments, and none about images."""
    kinds = {cell.evidence.subject for cell in report.cells if cell.evidence}
    return SubjectKind.ENVIRONMENT in kinds and SubjectKind.IMAGE not in kinds


def uncounted(report: ReportModel) -> list[str]:
    """Return a line for each piece of evidence of merged runs that does not count for a verdict."""
    return [
        f"{words.one_line(cell.id)}: evidence of {words.machine(other.host)} does not count: it is "
        f"{words.one_line(other.why)}"
        for cell in report.cells
        for other in cell.other_evidence
    ]


def render_markdown(report: ReportModel) -> str:
    """Return report.md: the grid, every cell's verdict, and what went wrong or is missing."""
    rows = sorted({minor_of(cell.torch) for cell in report.cells}, key=words.order)
    columns = sorted(
        {cell.cuda for cell in report.cells}, key=lambda name: words.order(cuda_version(name))
    )
    grid = [
        [
            row,
            *(
                "<br>".join(
                    _verdict(cell)
                    for cell in report.cells
                    if minor_of(cell.torch) == row and cell.cuda == column
                )
                for column in columns
            ),
        ]
        for row in rows
    ]
    cells = [
        (_escape(cell.id), _verdict(cell), _escape(_why(cell)), _digest(cell))
        for cell in report.cells
    ]
    parts = [
        "# PyTorch images and their proof",
        f"{counts(report)}. {words.moment(report.generated_at)}; "
        + "; ".join(_escape(words.machine(host)) for host in report.machines or [report.host])
        + f"; probe suite `{words.short(report.suite_hash)}`.",
    ]
    if built_nothing(report):
        parts.append("> **No images were built.** The probes ran in virtual environments.")
    parts += [f"> {_escape(note)}" for note in (*report.notes, *uncounted(report))]
    parts.append(_table(grid, ["torch", *(f"CUDA {cuda_version(name)}" for name in columns)]))
    parts.append(_table(cells, ["cell", "verdict", "reason", "digest"]))
    if report.sharing.images:
        shared = report.sharing
        parts.append(
            f"{shared.images} images use {words.size(shared.total_bytes)} of layers and store "
            f"{words.size(shared.stored_bytes)}: {words.size(shared.shared_bytes)} are shared."
        )
    parts += [section for cell in report.cells if (section := _problems(cell))]
    return "\n\n".join(parts) + "\n"


def _why(cell: CellModel) -> str:
    nearest = f" (nearest: {', '.join(cell.nearest)})" if cell.nearest else ""
    return cell.reason + nearest


def _verdict(cell: CellModel) -> str:
    return f"{MARKS[cell.verdict]} {cell.verdict}"


def _digest(cell: CellModel) -> str:
    return f"`{words.short(cell.image.digest)}`" if cell.image else ""


def _problems(cell: CellModel) -> str:
    """List the probes and findings of one cell that a reader should act on."""
    rows = [
        (probe.name, words.OUTCOMES[probe.outcome], probe.code, probe.message, probe.fix)
        for probe in cell.probes
        if probe.outcome is not Outcome.PASS
    ] + [
        (f.rule, f.outcome.value, "", " ".join(filter(None, (f.message, f.where))), f.fix)
        for f in cell.audit
        if f.outcome in (Level.ERROR, Level.WARNING)
    ]
    if not rows:
        return ""
    escaped = [[_escape(text) for text in row] for row in rows]
    table = _table(escaped, ["what", "outcome", "code", "seen", "fix"])
    return f"## {_escape(cell.id)}\n\n{table}"


def _table(rows: list[list[str]] | list[tuple[str, str, str, str]], headers: list[str]) -> str:
    return tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)


def _escape(text: str) -> str:
    """Escape a probe's text: it stays inside its table cell, and is not read as markup."""
    plain = words.one_line(text).replace("\\", "\\\\")
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for character in "|`*_[]#~!":
        plain = plain.replace(character, "\\" + character)
    return plain
