"""Which cells of a report may be published, and why not. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torchproof.model.results import Level, Outcome, State
from torchproof.report.models import CellModel, FindingModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a cell may be published. `reason` says why not; `accepted` names unproven probes."""

    cell: str
    allowed: bool
    reason: str = ""
    accepted: tuple[str, ...] = ()


def decide(cell: CellModel, accept_unproven: Sequence[str] = ()) -> Decision:
    """Decide on one cell of a report.

    `verified` may be published; `unproven` only if `accept_unproven` (names or patterns) names each
    probe that it lacks. The rest of the report must agree with the verdict.
    """
    objection = next(_objections(cell, accept_unproven), "")
    if objection:
        return Decision(cell=cell.id, allowed=False, reason=objection)
    return Decision(cell=cell.id, allowed=True, accepted=missing_probes(cell))


def missing_probes(cell: CellModel) -> tuple[str, ...]:
    """Return the required probes that did not pass on any host, sorted."""
    passed = {probe.name for probe in cell.probes if probe.outcome is Outcome.PASS}
    return tuple(sorted(_required_probes(cell) - passed))


def _objections(cell: CellModel, accept_unproven: Sequence[str]) -> Iterator[str]:
    if cell.verdict not in (State.VERIFIED, State.UNPROVEN):
        yield f"{cell.verdict}: {cell.reason}"
    if cell.image is None:
        yield f"{cell.verdict}, but there is no image: it was proven without one"
    elif cell.evidence is None or cell.evidence.digest != cell.image.digest:
        yield f"{cell.verdict}, but its evidence is about another digest"
    if not cell.lock_digest:
        yield f"{cell.verdict}, but the report does not name its lock"
    required = _required_probes(cell)
    failed = {
        probe.name
        for probe in cell.probes
        if probe.outcome is Outcome.FAIL and probe.name in required
    }
    failed |= {
        finding.rule
        for finding in cell.audit
        if finding.outcome is Level.ERROR and _counts(cell, finding)
    }
    if failed:
        names = ", ".join(sorted(failed))
        yield f"the report says {cell.verdict}, and also that these failed: {names}"
    lacking = missing_probes(cell)
    if cell.verdict is State.VERIFIED and lacking:
        yield f"the report says verified, but nothing proves {', '.join(lacking)}"
    if cell.verdict is State.UNPROVEN:
        refused = [
            name
            for name in lacking
            if not any(fnmatchcase(name, pattern) for pattern in accept_unproven)
        ]
        if refused:
            names = ", ".join(refused)
            yield f"unproven: {cell.reason} (publish.accept_unproven does not name {names})"
        if not lacking:
            yield f"unproven: {cell.reason}"


def _required_probes(cell: CellModel) -> set[str]:
    named = {probe.name for probe in cell.policy.probes}
    return named | {probe.name for probe in cell.probes if probe.required}


def _counts(cell: CellModel, finding: FindingModel) -> bool:
    required = any(fnmatchcase(finding.rule, pattern) for pattern in cell.policy.rules)
    ignored = any(fnmatchcase(finding.rule, pattern) for pattern in cell.policy.ignored)
    return required and not ignored
