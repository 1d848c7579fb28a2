"""How far one cell got in a run, and the verdict that follows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from torchproof.errors import CellError, InputError, TorchproofError
from torchproof.model.lock import Lock
from torchproof.model.results import (
    Built,
    Finding,
    Host,
    NotTried,
    ProbeResult,
    State,
    SubjectKind,
    Verdict,
)
from torchproof.report import report_cell
from torchproof.report.models import CellModel
from torchproof.resolve.survey import SurveyedCell
from torchproof.verdict.decide import decide, from_error
from torchproof.verdict.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRun:
    """One cell in a run; what it has not reached yet is None.

    `error` is what stopped it early. `log` is the path of the build's log below the reports folder.
    """

    surveyed: SurveyedCell
    lock: Lock | None = None
    built: Built | None = None
    findings: tuple[Finding, ...] | None = None
    probes: tuple[ProbeResult, ...] | None = None
    error: TorchproofError | None = None
    log: str = ""
    note: str = ""
    """A remark on its lock."""

    @property
    def id(self) -> str:
        """The cell's id."""
        return self.surveyed.id

    @property
    def open(self) -> bool:
        """Whether the run goes on for this cell."""
        return self.surveyed.verdict is None and self.error is None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictContext:
    """What all cells of a run are judged by. `at` is an RFC 3339 time, UTC."""

    policy: Policy
    host: Host
    suite_hash: str
    at: str


def verdict_of(run: CellRun, context: VerdictContext) -> Verdict:
    """Return the verdict of a cell, however far it got."""
    if run.surveyed.verdict is not None:
        return run.surveyed.verdict
    if run.error is not None:
        return _verdict_of_error(run, run.error, context)
    if run.built is None or run.probes is None:
        return NotTried(state=State.BLOCKED, reason="the run ended before it reached this cell")
    return decide(
        built=run.built,
        findings=run.findings,
        probes=run.probes,
        policy=context.policy,
        suite_hash=context.suite_hash,
        host=context.host,
        at=context.at,
    )


def cell_model(run: CellRun, context: VerdictContext) -> CellModel:
    """Return a cell as the report holds it."""
    notes = [run.surveyed.availability.note, run.note] if not run.surveyed.request.excluded else []
    return report_cell(
        run.surveyed.cell,
        verdict_of(run, context),
        lock=run.lock,
        built=run.built,
        policy=context.policy,
        notes=[note for note in notes if note],
        build_log=run.log,
    )


def _verdict_of_error(run: CellRun, error: TorchproofError, context: VerdictContext) -> Verdict:
    if isinstance(error, InputError):  # an unreadable lock is the cell's own fault
        error = CellError(error.message, where=error.where, fix=error.fix)
    subject, digest = SubjectKind.LOCK, run.lock.digest if run.lock else ""
    if run.built is not None:
        subject, digest = run.built.subject, run.built.digest
    return from_error(
        error,
        subject=subject,
        digest=digest,
        suite_hash=context.suite_hash,
        host=context.host,
        at=context.at,
        findings=run.findings,
        probes=run.probes or (),
    )
