"""How far one cell came on the road, and the verdict that this gives. Pure."""

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
from torchproof.verdict.decide import Policy, decide, from_error


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRun:
    """One cell on its road; what is not reached yet is None.

    `error` ended the road early. `log` is the path of the build's log below the reports folder.
    """

    item: SurveyedCell
    lock: Lock | None = None
    built: Built | None = None
    findings: tuple[Finding, ...] | None = None
    probes: tuple[ProbeResult, ...] | None = None
    error: TorchproofError | None = None
    log: str = ""
    note: str = ""
    """What is worth knowing of its lock."""

    @property
    def id(self) -> str:
        """The cell's name."""
        return self.item.id

    @property
    def open(self) -> bool:
        """Whether the road goes on for this cell."""
        return self.item.verdict is None and self.error is None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictContext:
    """What all cells of a run are judged with. `at` is an RFC 3339 time, UTC."""

    policy: Policy
    host: Host
    suite_hash: str
    at: str


def verdict_of(run: CellRun, context: VerdictContext) -> Verdict:
    """Return the verdict of a cell, however far it came."""
    if run.item.verdict is not None:
        return run.item.verdict
    if run.error is not None:
        return _ended(run, run.error, context)
    if run.built is None or run.probes is None:
        return NotTried(state=State.BLOCKED, reason="the run ended before it came to this cell")
    return decide(
        built=run.built,
        findings=run.findings,
        probes=run.probes,
        policy=context.policy,
        suite_hash=context.suite_hash,
        host=context.host,
        at=context.at,
    )


def describe_cell(run: CellRun, context: VerdictContext) -> CellModel:
    """Describe a cell for the report."""
    notes = [run.item.availability.note, run.note] if not run.item.request.excluded else []
    return report_cell(
        run.item.cell,
        verdict_of(run, context),
        lock=run.lock,
        built=run.built,
        policy=context.policy,
        notes=[note for note in notes if note],
        build_log=run.log,
    )


def _ended(run: CellRun, error: TorchproofError, context: VerdictContext) -> Verdict:
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
