"""Probe results → report.json, which can be merged with reports of other machines and shards."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tabulate import tabulate

from torchproof.errors import Exit
from torchproof.model.cell import Cell
from torchproof.model.results import Outcome, ProbeResult
from torchproof.probing.baseline import judge
from torchproof.probing.script import suite_hash
from torchproof.probing.store import read_results
from torchproof.probing.subjects import Subject
from torchproof.report.convert import make_report, report_cell
from torchproof.report.models import CellModel
from torchproof.verdict.decide import decide
from torchproof.verdict.policy import Policy, RequiredProbe


def write_report(subjects: Sequence[Subject], folder: Path, reports: Path) -> Path:
    """Judge the probe results and write them as a report; return its path."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    suite = suite_hash(folder)
    cells = [_cell_model(subject, results_of(subject, reports), suite, at) for subject in subjects]
    report = make_report(cells, host=subjects[0].runner.host(), suite_hash=suite, generated_at=at)
    path = reports / "report.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report.model_dump_json(by_alias=True, indent=1) + "\n", encoding="utf-8")
    return path


def results_of(subject: Subject, reports: Path) -> list[ProbeResult]:
    """Return the stored results of one cell, for the probes that were chosen."""
    path = reports / "cells" / subject.built.cell / "probes.json"
    if not path.exists():
        return []
    names = {probe.name for probe, _ in subject.chosen}
    measured = [result for result in read_results(path) if result.name in names]
    return [judge(result, subject.options.baseline) for result in measured]


def results_table(subjects: Sequence[Subject], reports: Path) -> tuple[str, Exit]:
    """Return all results as a text table, and the exit code that follows from them."""
    rows: list[tuple[str, str, str, str, str]] = []
    worst = Exit.OK
    for subject in subjects:
        for result in results_of(subject, reports):
            text = result.message + (f"\nfix: {result.fix}" if result.fix else "")
            seconds = f"{result.seconds:.1f} s"
            rows.append((subject.built.cell, result.name, result.outcome, seconds, text))
            worst = _worse(worst, result)
    heads = ("cell", "probe", "outcome", "time", "what was seen")
    widths = [None, None, None, None, 80]
    return tabulate(rows, heads, tablefmt="simple", maxcolwidths=widths), worst


def _worse(worst: Exit, result: ProbeResult) -> Exit:
    """Return the worse exit code: a failed cell, then a host at fault, then something unproven."""
    if not result.required:
        return worst
    match result.outcome:
        case Outcome.FAIL | Outcome.TIMEOUT:
            return Exit.CELL_FAILED
        case Outcome.HOST_FAULT if worst is not Exit.CELL_FAILED:
            return Exit.ENVIRONMENT
        case Outcome.SKIP if worst is Exit.OK:
            return Exit.NOT_PROVEN
        case _:
            return worst


def _cell_model(subject: Subject, results: Sequence[ProbeResult], suite: str, at: str) -> CellModel:
    needs = [probe for probe, required in subject.chosen if required]
    policy = Policy(probes=tuple(RequiredProbe(name=p.name, gpus=p.gpus) for p in needs))
    verdict = decide(
        built=subject.built,
        findings=None,
        probes=results,
        policy=policy,
        suite_hash=suite,
        host=subject.runner.host(),
        at=at,
    )
    model = report_cell(
        _cell_of(subject), verdict, lock=subject.lock, built=subject.built, policy=policy
    )
    return model.model_copy(update={"id": subject.built.cell})


def _cell_of(subject: Subject) -> Cell:
    lock = subject.lock
    torch, cuda, python = subject.built.cell.split("-")[:3]
    if lock is not None:
        return Cell(torch=lock.torch, cuda=lock.cuda, python=lock.python, platform=lock.platform)
    return Cell(torch=torch, cuda=cuda, python=f"{python[2]}.{python[3:]}")
