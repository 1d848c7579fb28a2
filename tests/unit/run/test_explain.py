"""What `explain` says about a cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.report.report_samples import every_verdict
from torchproof.model.results import MEANINGS, Level, Outcome, State
from torchproof.report.models import CellModel
from torchproof.run.explain import explain_cell

CELLS = every_verdict().cells


def of(state: State) -> CellModel:
    return next(cell for cell in CELLS if cell.verdict is state)


def text(cell: CellModel) -> str:
    return "\n".join(explain_cell(cell))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_every_explanation_has_the_verdict_and_its_reason(cell: CellModel) -> None:
    said = text(cell)
    assert f"{cell.id}: {cell.verdict}: {MEANINGS[cell.verdict]}" in said
    assert all(line in said for line in cell.reason.splitlines())


def test_an_unavailable_cell_names_its_source_and_the_nearest_cell() -> None:
    cell = of(State.UNAVAILABLE)
    assert cell.source in text(cell)
    assert all(near in text(cell) for near in cell.nearest)


def test_a_failed_cell_names_the_probe_or_rule_at_fault_and_the_fix() -> None:
    for cell in (cell for cell in CELLS if cell.verdict is State.FAILED):
        faults = [p for p in cell.probes if p.outcome is Outcome.FAIL]
        errors = [f for f in cell.audit if f.outcome is Level.ERROR]
        for fault in faults:
            assert fault.name in text(cell) and fault.fix in text(cell)
        for error in errors:
            assert error.rule in text(cell) and error.fix in text(cell)


def test_a_cell_that_was_tried_names_what_its_evidence_is_bound_to() -> None:
    cell = of(State.VERIFIED)
    assert cell.evidence is not None
    assert cell.evidence.digest in text(cell)
    assert cell.evidence.suite_hash in text(cell)


def test_an_unproven_cell_says_what_to_do_next() -> None:
    assert "report --from" in text(of(State.UNPROVEN))


def test_a_message_of_several_lines_stays_indented() -> None:
    cell = of(State.FAILED)
    several = cell.model_copy(update={"reason": "first\n\nsecond"})
    assert all(line.startswith("  ") for line in explain_cell(several)[1:])


@pytest.mark.parametrize("state", [state for state in State if state is not State.PLANNED])
def test_the_readme_says_the_same_of_a_verdict(state: State) -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    assert f"| {state} | {MEANINGS[state]}" in readme
