"""Models of a report → the values that verdicts are made of: evidence, hosts, policy. Pure."""

from __future__ import annotations

from torchproof.model.results import Evidence, Finding, Gpu, Host, ProbeResult
from torchproof.report.models import HostModel, OtherEvidenceModel, PolicyModel
from torchproof.verdict.policy import Policy, RequiredProbe


def evidence_of(model: OtherEvidenceModel) -> Evidence:
    """Turn evidence of a report back into the value that verdicts are made of."""
    return Evidence(
        subject=model.subject,
        digest=model.digest,
        suite_hash=model.suite_hash,
        host=host_of(model.host),
        at=model.at,
        audited=model.audited,
        audit=tuple(
            Finding(rule=f.rule, level=f.outcome, message=f.message, fix=f.fix, where=f.where)
            for f in model.audit
        ),
        probes=tuple(
            ProbeResult(
                name=p.name,
                outcome=p.outcome,
                code=p.code,
                seconds=p.seconds,
                message=p.message,
                fix=p.fix,
                required=p.required,
                metrics=p.metrics,
                host=host_of(p.host),
                log=p.log,
            )
            for p in model.probes
        ),
    )


def host_of(model: HostModel) -> Host:
    """Turn a host of a report back into a value."""
    return Host(
        engine=model.engine,
        driver=model.driver,
        gpus=tuple(Gpu(model=g.model, arch=g.arch, memory=g.memory_bytes) for g in model.gpus),
    )


def policy_of(model: PolicyModel) -> Policy:
    """Turn the policy of a report back into a value."""
    return Policy(
        probes=tuple(RequiredProbe(name=p.name, gpus=p.gpus) for p in model.probes),
        rules=tuple(model.rules),
        ignored=tuple(model.ignored),
    )
