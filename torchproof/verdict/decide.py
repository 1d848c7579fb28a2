"""Evidence → verdict. Pure: the only place where a cell becomes green, red or anything between.

The order of the questions matters: is the image at fault (audit, then probes), is the host at
fault, what is still missing, and only then `verified`. A skip never answers a question.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from torchproof.errors import CellError, TorchproofError
from torchproof.model.results import (
    Built,
    Evidence,
    Finding,
    Host,
    Judged,
    Level,
    NotTried,
    Outcome,
    ProbeResult,
    State,
    SubjectKind,
    Verdict,
)
from torchproof.verdict.policy import Policy


def decide(
    *,
    built: Built,
    findings: Sequence[Finding] | None,
    probes: Sequence[ProbeResult],
    policy: Policy,
    suite_hash: str,
    host: Host,
    at: str,
) -> Verdict:
    """Judge what was built. `findings` is None if the audit did not run; `at` is RFC 3339, UTC."""
    return judge(
        Evidence(
            subject=built.subject,
            digest=built.digest,
            suite_hash=suite_hash,
            host=host,
            at=at,
            audit=tuple(findings or ()),
            probes=tuple(probes),
            audited=findings is not None,
        ),
        policy,
    )


def judge(evidence: Evidence, policy: Policy) -> Verdict:
    """Return the verdict that this evidence gives under this policy."""
    faults = audit_errors(evidence.audit, policy)
    if faults:
        return Judged(state=State.FAILED, reason=_audit_reason(faults), evidence=evidence)

    by_name = _by_name(evidence.probes)
    needs = {probe.name: probe.gpus for probe in policy.probes}
    for result in evidence.probes:
        if result.required:
            needs.setdefault(result.name, 0)

    failed = [r for name in needs for r in by_name.get(name, ()) if r.outcome in _FAILED]
    if failed:
        return Judged(state=State.FAILED, reason=_probe_reason(failed), evidence=evidence)

    missing = {
        name: gpus
        for name, gpus in needs.items()
        if not any(_proves(result, gpus, evidence.host) for result in by_name.get(name, ()))
    }
    faulty = [r for name in missing for r in by_name.get(name, ()) if _is(r, Outcome.HOST_FAULT)]
    if faulty:
        return NotTried(
            state=State.BLOCKED,
            reason="the host is at fault: " + _probe_reason(faulty),
            fix=next((result.fix for result in faulty if result.fix), ""),
            evidence=evidence,
        )

    reasons = _gaps(evidence, needs, missing, by_name)
    if reasons:
        return Judged(state=State.UNPROVEN, reason="; ".join(reasons), evidence=evidence)
    return Judged(state=State.VERIFIED, reason=_verified_reason(evidence, needs), evidence=evidence)


def from_error(
    error: TorchproofError,
    *,
    subject: SubjectKind,
    digest: str,
    suite_hash: str,
    host: Host,
    at: str,
    findings: Sequence[Finding] | None = None,
    probes: Sequence[ProbeResult] = (),
) -> Verdict:
    """Judge a cell whose road ended early: at fault itself (`failed`), or blocked by its host.

    `digest` is the lock's if nothing was built; what was found before the error is kept.
    """
    evidence = Evidence(
        subject=subject,
        digest=digest,
        suite_hash=suite_hash,
        host=host,
        at=at,
        audit=tuple(findings or ()),
        probes=tuple(probes),
        audited=findings is not None,
    )
    reason = f"{error.where}: {error.message}" if error.where else error.message
    if isinstance(error, CellError):
        return Judged(state=State.FAILED, reason=reason, evidence=evidence)
    kept = evidence if findings is not None or probes else None
    return NotTried(state=State.BLOCKED, reason=reason, fix=error.fix, evidence=kept)


def audit_errors(findings: Iterable[Finding], policy: Policy) -> list[Finding]:
    """Return the findings that fail a cell; a runner checks them before it starts any probe."""
    return [f for f in findings if f.level is Level.ERROR and policy.requires_rule(f.rule)]


_FAILED = frozenset({Outcome.FAIL, Outcome.TIMEOUT})


def _is(result: ProbeResult, outcome: Outcome) -> bool:
    return result.outcome is outcome


def _by_name(probes: Iterable[ProbeResult]) -> Mapping[str, list[ProbeResult]]:
    grouped: dict[str, list[ProbeResult]] = defaultdict(list)
    for result in probes:
        grouped[result.name].append(result)
    return grouped


def _proves(result: ProbeResult, gpus: int, host: Host) -> bool:
    """Tell whether a result is a pass with the GPUs that the policy asks for.

    Several ranks on one GPU run NCCL's code but not the machine's links: never a 2-GPU pass.
    """
    if result.outcome is not Outcome.PASS:
        return False
    return gpus == 0 or (
        len((result.host or host).gpus) >= gpus and (gpus == 1 or not _shares_gpu(result))
    )


def _shares_gpu(result: ProbeResult) -> bool:
    ranks = result.metrics.get("ranks_per_gpu", 1)
    return not isinstance(ranks, int) or ranks > 1


def _gaps(
    evidence: Evidence,
    needs: Mapping[str, int],
    missing: Mapping[str, int],
    by_name: Mapping[str, list[ProbeResult]],
) -> list[str]:
    """List what this evidence lacks to be `verified`."""
    reasons: list[str] = []
    if not evidence.digest:
        reasons.append("the image has no digest to bind results to")
    if not evidence.audited:
        reasons.append("the audit did not run")
    if not needs:
        reasons.append("no probe is required, so nothing is proven")

    by_gpus: dict[int, list[str]] = defaultdict(list)
    skipped: list[str] = []
    unrun: list[str] = []
    for name, gpus in missing.items():
        results = by_name.get(name, [])
        hosts = [result.host or evidence.host for result in results] or [evidence.host]
        if gpus > max(len(host.gpus) for host in hosts):
            by_gpus[gpus].append(name)
        elif any(_shares_gpu(r) for r in results if _is(r, Outcome.PASS)):
            by_gpus[gpus].append(f"{name} (ran with several ranks on one GPU)")
        elif results:
            skipped.append(f"{name} ({results[0].message or results[0].code})")
        else:
            unrun.append(name)
    for gpus, names in sorted(by_gpus.items()):
        reasons.append(f"needs {gpus} GPU{'s' if gpus > 1 else ''}: {', '.join(names)}")
    if skipped:
        reasons.append(f"skipped: {', '.join(skipped)}")
    if unrun:
        reasons.append(f"not run: {', '.join(unrun)}")
    if evidence.subject is not SubjectKind.IMAGE:
        reasons.append("no image was built")
    return reasons


def _audit_reason(faults: Sequence[Finding]) -> str:
    first = faults[0]
    where = f" ({first.where})" if first.where else ""
    return f"audit {first.rule}: {first.message}{where}{_more(faults)}"


def _probe_reason(results: Sequence[ProbeResult]) -> str:
    first = results[0]
    word = "timed out" if first.outcome is Outcome.TIMEOUT else first.code
    message = f": {first.message}" if first.message else ""
    return f"{first.name}: {word}{message}{_more(results)}"


def _more(items: Sequence[Finding] | Sequence[ProbeResult]) -> str:
    return f" (and {len(items) - 1} more)" if len(items) > 1 else ""


def _verified_reason(evidence: Evidence, needs: Mapping[str, int]) -> str:
    hosts = {result.host or evidence.host for result in evidence.probes if result.name in needs}
    places = f" on {len(hosts)} hosts" if len(hosts) > 1 else ""
    count = len(needs)
    reason = f"{count} required probe{'s' if count > 1 else ''} passed{places}"
    optional = sorted(
        result.name
        for result in evidence.probes
        if result.name not in needs and result.outcome in _FAILED
    )
    return f"{reason}; optional and failed: {', '.join(optional)}" if optional else reason
