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

    `verified` may be published; `unproven` only if each probe that it lacks is named by
    `accept_unproven` (names or patterns). The rest of the report must agree with the verdict.
    """
    objection = next(_objections(cell, accept_unproven), "")
    if objection:
        return Decision(cell=cell.id, allowed=False, reason=objection)
    return Decision(cell=cell.id, allowed=True, accepted=missing_probes(cell))


def missing_probes(cell: CellModel) -> tuple[str, ...]:
    """Name the required probes that did not pass anywhere, sorted."""
    passed = {one.name for one in cell.probes if one.outcome is Outcome.PASS}
    return tuple(sorted(_asked(cell) - passed))


def _objections(cell: CellModel, accept_unproven: Sequence[str]) -> Iterator[str]:
    if cell.verdict not in (State.VERIFIED, State.UNPROVEN):
        yield f"{cell.verdict}: {cell.reason}"
    if cell.image is None:
        yield f"{cell.verdict}, but there is no image: it was proven without one"
    elif cell.evidence is None or cell.evidence.digest != cell.image.digest:
        yield f"{cell.verdict}, but its evidence is about another digest"
    if not cell.lock_digest:
        yield f"{cell.verdict}, but the report does not name its lock"
    asked = _asked(cell)
    failed = {one.name for one in cell.probes if one.outcome is Outcome.FAIL and one.name in asked}
    failed |= {one.rule for one in cell.audit if one.outcome is Level.ERROR and _counts(cell, one)}
    if failed:
        names = ", ".join(sorted(failed))
        yield f"the report says {cell.verdict}, and also that these failed: {names}"
    lacking = missing_probes(cell)
    if cell.verdict is State.VERIFIED and lacking:
        yield f"the report says verified, but nothing proves {', '.join(lacking)}"
    if cell.verdict is State.UNPROVEN:
        refused = [
            name for name in lacking if not any(fnmatchcase(name, one) for one in accept_unproven)
        ]
        if refused:
            names = ", ".join(refused)
            yield f"unproven: {cell.reason} (publish.accept_unproven does not name {names})"
        if not lacking:
            yield f"unproven: {cell.reason}"


def _asked(cell: CellModel) -> set[str]:
    named = {one.name for one in cell.policy.probes}
    return named | {one.name for one in cell.probes if one.required}


def _counts(cell: CellModel, finding: FindingModel) -> bool:
    asked = any(fnmatchcase(finding.rule, one) for one in cell.policy.rules)
    return asked and not any(fnmatchcase(finding.rule, one) for one in cell.policy.ignored)
