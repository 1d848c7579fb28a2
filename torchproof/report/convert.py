"""Values of a run → the models of a report. Pure; `from_report` is the way back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchproof.model.cell import Cell
from torchproof.model.declared_host import DeclaredHost
from torchproof.model.lock import Lock
from torchproof.model.results import (
    Built,
    Evidence,
    Finding,
    Host,
    NotTried,
    ProbeResult,
    SubjectKind,
    Verdict,
)
from torchproof.report.models import (
    AnswerModel,
    BuildModel,
    CellModel,
    DeclaredHostModel,
    EnvironmentModel,
    EvidenceModel,
    FindingModel,
    GpuModel,
    HostModel,
    ImageModel,
    LayerModel,
    OverrideModel,
    PolicyModel,
    ProbeModel,
    ReportModel,
    RequiredProbeModel,
    SharingModel,
)
from torchproof.report.order import order_cells, order_hosts
from torchproof.upstream.host_fit import HostRow
from torchproof.verdict.policy import Policy


def report_cell(
    cell: Cell,
    verdict: Verdict,
    *,
    lock: Lock | None = None,
    built: Built | None = None,
    policy: Policy | None = None,
    notes: Sequence[str] = (),
    build_log: str = "",
) -> CellModel:
    """Return the report's model of one cell. `build_log` is a path below the reports directory."""
    evidence = verdict.evidence
    not_tried = verdict if isinstance(verdict, NotTried) else None
    return CellModel(
        id=cell.id,
        torch=cell.torch,
        cuda=cell.cuda,
        cudnn=lock.cudnn if lock else cell.cudnn,
        nccl=lock.nccl if lock else cell.nccl,
        triton=lock.triton if lock else None,
        python=cell.python,
        platform=cell.platform,
        gpus=list(cell.gpus),
        archs=list(lock.archs) if lock else [],
        driver_floor=lock.driver_floor if lock else "",
        verdict=verdict.state,
        reason=verdict.reason,
        fix=not_tried.fix if not_tried else "",
        source=not_tried.source if not_tried else "",
        nearest=list(not_tried.nearest) if not_tried else [],
        notes=list(notes),
        overrides=[
            OverrideModel(name=o.name, pinned=o.pinned, chosen=o.chosen)
            for o in (lock.overrides if lock else ())
        ],
        lock_digest=lock.digest if lock else "",
        image=_image(built) if built and built.subject is SubjectKind.IMAGE else None,
        environment=_environment(built)
        if built and built.subject is SubjectKind.ENVIRONMENT
        else None,
        build=BuildModel(
            seconds=built.seconds, reused=built.reused, plan_hash=built.plan_hash, log=build_log
        )
        if built
        else None,
        evidence=_evidence(evidence) if evidence else None,
        policy=_policy(policy or Policy()),
        audit=[finding_model(finding) for finding in evidence.audit] if evidence else [],
        probes=[probe_model(probe, evidence.host) for probe in evidence.probes] if evidence else [],
    )


def make_report(
    cells: Iterable[CellModel],
    *,
    host: Host,
    suite_hash: str,
    generated_at: str,
    hosts: Sequence[DeclaredHostModel] = (),
    notes: Sequence[str] = (),
) -> ReportModel:
    """Combine cells into one report, in the fixed order of reports."""
    listed = order_cells(cells)
    machine = host_model(host)
    return ReportModel(
        generated_at=generated_at,
        suite_hash=suite_hash,
        host=machine,
        machines=[machine],
        cells=listed,
        hosts=order_hosts(hosts),
        sharing=sharing(listed),
        notes=sorted(set(notes)),
    )


def report_hosts(
    hosts: Iterable[DeclaredHost], table: Sequence[HostRow]
) -> list[DeclaredHostModel]:
    """Return the models of the declared hosts, with the answers of `driver_rules.host_table`."""
    return [
        DeclaredHostModel(
            name=host.name,
            driver=host.driver,
            gpu=host.gpu,
            count=host.count,
            answers=[
                AnswerModel(
                    cell=row.cell,
                    answer=answer.fit,
                    rule=answer.rule or "",
                    reason=answer.reason,
                    source=answer.source,
                    change=list(answer.change),
                )
                for row in table
                for name, answer in row.answers
                if name == host.name
            ],
        )
        for host in hosts
    ]


def sharing(cells: Iterable[CellModel]) -> SharingModel:
    """Count the bytes that images share because they have equal layers.

    A digest is stored once, however many images use it; an image listed twice counts once.
    """
    images = {cell.image.digest: cell.image for cell in cells if cell.image}
    layers = [
        {layer.digest: layer.size_bytes for layer in image.layers} for image in images.values()
    ]
    total = sum(sum(image.values()) for image in layers)
    stored = sum({digest: size for image in layers for digest, size in image.items()}.values())
    return SharingModel(
        images=len(images),
        total_bytes=total,
        stored_bytes=stored,
        shared_bytes=total - stored,
    )


def host_model(host: Host) -> HostModel:
    """Return the model of a host, without the UUIDs of its GPUs."""
    return HostModel(
        engine=host.engine,
        driver=host.driver,
        gpus=[GpuModel(model=g.model, arch=g.arch, memory_bytes=g.memory) for g in host.gpus],
    )


def finding_model(finding: Finding) -> FindingModel:
    """Return the model of a finding."""
    return FindingModel(
        rule=finding.rule,
        outcome=finding.level,
        message=finding.message,
        fix=finding.fix,
        where=finding.where,
    )


def probe_model(probe: ProbeResult, default_host: Host) -> ProbeModel:
    """Return the model of a probe's result, with the host it ran on."""
    return ProbeModel(
        name=probe.name,
        outcome=probe.outcome,
        code=probe.code,
        seconds=probe.seconds,
        metrics=dict(probe.metrics),
        message=probe.message,
        fix=probe.fix,
        host=host_model(probe.host or default_host),
        required=probe.required,
        log=probe.log,
    )


def _policy(policy: Policy) -> PolicyModel:
    return PolicyModel(
        probes=[RequiredProbeModel(name=p.name, gpus=p.gpus) for p in policy.probes],
        rules=list(policy.rules),
        ignored=list(policy.ignored),
    )


def _image(built: Built) -> ImageModel:
    return ImageModel(
        ref=built.ref,
        digest=built.digest,
        size_bytes=built.size,
        layers=[
            LayerModel(name=layer.name, digest=layer.digest, size_bytes=layer.size)
            for layer in built.layers
        ],
    )


def _environment(built: Built) -> EnvironmentModel:
    return EnvironmentModel(path=built.ref, digest=built.digest, size_bytes=built.size)


def _evidence(evidence: Evidence) -> EvidenceModel:
    return EvidenceModel(
        subject=evidence.subject,
        digest=evidence.digest,
        suite_hash=evidence.suite_hash,
        host=host_model(evidence.host),
        at=evidence.at,
        audited=evidence.audited,
    )
