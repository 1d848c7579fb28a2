"""metrics.prom: the report in Prometheus' text format (node exporter's textfile collector)."""

from __future__ import annotations

from datetime import datetime

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from torchproof.report import words
from torchproof.report.models import CellModel, ReportModel


def render_prometheus(report: ReportModel) -> str:
    """Return the metrics. The verdict gauge is 1 for a cell's verdict and 0 for all others."""
    registry = CollectorRegistry()
    verdict = _gauge(registry, "verdict", "1 for the verdict of a cell", "verdict")
    probes = _gauge(registry, "probe_outcome", "Probes of a cell by how they ended", "outcome")
    seconds = _gauge(registry, "probe_seconds", "Wall-clock time of a probe", "probe", "host")
    findings = _gauge(registry, "audit_findings", "Audit findings of a cell", "level")
    image = _gauge(registry, "image_size_bytes", "Size of a cell's image")
    build = _gauge(registry, "build_seconds", "Time to build a cell")
    for cell in report.cells:
        own = words.one_line(cell.id)
        for state in words.VERDICTS:
            verdict.labels(own, state.value).set(cell.verdict is state)
        for outcome in words.OUTCOMES:
            count = sum(probe.outcome is outcome for probe in cell.probes)
            probes.labels(own, outcome.value).set(count)
        for level in words.LEVELS:
            findings.labels(own, level.value).set(_count(cell, level))
        for probe in cell.probes:
            seconds.labels(own, words.one_line(probe.name), words.machine(probe.host)).set(
                probe.seconds
            )
        if cell.image:
            image.labels(own).set(cell.image.size_bytes)
        if cell.build:
            build.labels(own).set(cell.build.seconds)
    shared = Gauge("torchproof_shared_bytes", "Layer bytes shared by images", registry=registry)
    shared.set(report.sharing.shared_bytes)
    stored = Gauge("torchproof_stored_bytes", "Layer bytes stored once", registry=registry)
    stored.set(report.sharing.stored_bytes)
    made = Gauge("torchproof_report_timestamp_seconds", "When the run ended", registry=registry)
    made.set(_timestamp(report.generated_at))
    return generate_latest(registry).decode()


def _gauge(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Gauge:
    return Gauge(f"torchproof_{name}", text, ("cell", *labels), registry=registry)


def _count(cell: CellModel, level: str) -> int:
    return sum(finding.outcome == level for finding in cell.audit)


def _timestamp(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
