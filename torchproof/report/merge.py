"""Several reports → one: shards of a matrix, or the same cells on a CPU machine and a GPU machine.

Evidence is combined only if it is of the same digest and the same probe suite; other evidence stays
visible beside it. The order of the reports does not matter, and a report merged with itself is
unchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from torchproof.model.results import NotTried, Outcome, State, SubjectKind
from torchproof.report import words
from torchproof.report.convert import sharing
from torchproof.report.from_report import evidence_of, policy_of
from torchproof.report.models import (
    CellModel,
    EvidenceModel,
    OtherEvidenceModel,
    PolicyModel,
    ProbeModel,
    ReportModel,
)
from torchproof.report.order import (
    capability,
    key,
    order_cells,
    order_hosts,
    order_machines,
    unique,
)
from torchproof.verdict.decide import judge

_TRIED = frozenset({State.VERIFIED, State.FAILED, State.UNPROVEN})

_SUBJECTS = (SubjectKind.LOCK, SubjectKind.ENVIRONMENT, SubjectKind.IMAGE)
"""Least first: evidence of an image says more than evidence of anything else."""

_UNTRIED = (State.BLOCKED, State.UNAVAILABLE, State.EXCLUDED)
"""Least first: that a machine was cut off says less than that upstream has no such wheel."""


def merge(reports: Sequence[ReportModel]) -> ReportModel:
    """Merge reports of the same schema version. `reports` must not be empty."""
    cells: dict[str, list[CellModel]] = defaultdict(list)
    for report in reports:
        for cell in report.cells:
            cells[cell.id].append(cell)
    merged = order_cells(_merge_cell(unique(group)) for group in cells.values())
    newest = max(reports, key=lambda report: (report.generated_at, key(report)))
    machines = order_machines(
        machine for report in reports for machine in report.machines or [report.host]
    )
    return ReportModel(
        generated_at=newest.generated_at,
        suite_hash=newest.suite_hash,
        host=machines[0],
        machines=machines,
        cells=merged,
        hosts=order_hosts(host for report in reports for host in report.hosts),
        sharing=sharing(merged),
        notes=sorted({note for report in reports for note in report.notes}),
    )


def _merge_cell(group: Sequence[CellModel]) -> CellModel:
    if len(group) == 1:
        return group[0]
    pieces = _join(piece for cell in group for piece in _pieces(cell))
    if not pieces:
        return max(group, key=lambda cell: (_UNTRIED.index(cell.verdict), key(cell)))
    main, *others = sorted(pieces, key=_weight, reverse=True)
    about = max(group, key=lambda cell: (_same(cell.evidence, main), key(cell)))
    policy = _merge_policy([cell.policy for cell in group])
    verdict = judge(evidence_of(main), policy_of(policy))
    state, reason = verdict.state, verdict.reason
    fix = verdict.fix if isinstance(verdict, NotTried) else ""
    failed = [c for c in group if c.verdict is State.FAILED and _same(c.evidence, main)]
    if failed and state is not State.FAILED:
        # It failed outside its audit and probes: in its build or its wheels.
        state, reason = State.FAILED, min(cell.reason for cell in failed)
    elif state is State.UNPROVEN and not any(cell.verdict in _TRIED for cell in group):
        # The host cut each of these runs short: keep its reason.
        state, reason, fix = about.verdict, about.reason, about.fix
    return about.model_copy(
        update={
            "verdict": state,
            "reason": reason,
            "fix": fix,
            "source": "",
            "nearest": [],
            "notes": sorted({note for cell in group for note in cell.notes}),
            "policy": policy,
            "evidence": EvidenceModel(**main.model_dump(include=set(EvidenceModel.model_fields))),
            "audit": main.audit,
            "probes": main.probes,
            "other_evidence": [
                other.model_copy(update={"why": _why(main, other)}) for other in others
            ],
        }
    )


def _pieces(cell: CellModel) -> list[OtherEvidenceModel]:
    if cell.evidence is None:
        return cell.other_evidence
    own = OtherEvidenceModel(
        **cell.evidence.model_dump(),
        audit=cell.audit,
        probes=cell.probes,
        failures=[cell.reason] if cell.verdict is State.FAILED else [],
    )
    return [own, *cell.other_evidence]


def _join(pieces: Iterable[OtherEvidenceModel]) -> list[OtherEvidenceModel]:
    """Combine pieces of the same digest and suite; no finding or result is dropped."""
    groups: dict[tuple[SubjectKind, str, str], list[OtherEvidenceModel]] = defaultdict(list)
    for piece in pieces:
        groups[piece.subject, piece.digest, piece.suite_hash].append(piece)
    return [
        OtherEvidenceModel(
            subject=subject,
            digest=digest,
            suite_hash=suite,
            host=max((piece.host for piece in group), key=capability),
            at=max(piece.at for piece in group),
            audited=any(piece.audited for piece in group),
            audit=sorted(unique(f for piece in group for f in piece.audit), key=key),
            probes=_join_probes(probe for piece in group for probe in piece.probes),
            failures=sorted({reason for piece in group for reason in piece.failures}),
        )
        for (subject, digest, suite), group in groups.items()
    ]


def _join_probes(probes: Iterable[ProbeModel]) -> list[ProbeModel]:
    """Keep every result, but no skip of a probe that ran on another host; in a fixed order."""
    by_name: dict[str, list[ProbeModel]] = defaultdict(list)
    for probe in unique(probes):
        by_name[probe.name].append(probe)
    joined: list[ProbeModel] = []
    for group in by_name.values():
        ran = [probe for probe in group if probe.outcome is not Outcome.SKIP]
        joined += sorted(ran or group, key=key)
    return sorted(joined, key=lambda probe: (not probe.required, probe.name))


def _weight(piece: OtherEvidenceModel) -> tuple[object, ...]:
    return (_SUBJECTS.index(piece.subject), piece.at, piece.digest, piece.suite_hash)


def _same(evidence: EvidenceModel | None, other: EvidenceModel) -> bool:
    return evidence is not None and (evidence.subject, evidence.digest, evidence.suite_hash) == (
        other.subject,
        other.digest,
        other.suite_hash,
    )


def _why(main: EvidenceModel, other: EvidenceModel) -> str:
    """Say why evidence does not count for the verdict."""
    if (other.subject, other.digest) == (main.subject, main.digest):
        return (
            f"made by another probe suite ({words.short(other.suite_hash)}) than the verdict "
            f"({words.short(main.suite_hash)})"
        )
    about = (
        "another" if other.subject is main.subject else "an" if other.subject[0] in "ei" else "a"
    )
    return (
        f"about {about} {other.subject} ({words.short(other.digest)}); the verdict is on "
        f"{words.short(main.digest)}"
    )


def _merge_policy(policies: Sequence[PolicyModel]) -> PolicyModel:
    """Require everything that any run had to prove; ignore only what all runs ignored."""
    gpus: dict[str, int] = {}
    for policy in policies:
        for probe in policy.probes:
            gpus[probe.name] = max(gpus.get(probe.name, 0), probe.gpus)
    return PolicyModel.model_validate(
        {
            "probes": [{"name": name, "gpus": count} for name, count in sorted(gpus.items())],
            "rules": sorted({rule for policy in policies for rule in policy.rules}),
            "ignored": sorted(set.intersection(*(set(policy.ignored) for policy in policies))),
        }
    )
