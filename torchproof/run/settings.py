"""What a run over a matrix works with, and what it takes from matrix.yaml and the last report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchproof.audit.facts import ReportedSize
from torchproof.engines.engine import Engine
from torchproof.errors import InputError
from torchproof.index.indexes import Indexes
from torchproof.index.wheel_store import WheelStore
from torchproof.matrix.schema import Matrix
from torchproof.model.lock_file import IMAGES
from torchproof.probing.script import Probe
from torchproof.publish.ledger import Ledger
from torchproof.report import read_report
from torchproof.upstream.facts import Facts
from torchproof.verdict.policy import Policy, RequiredProbe


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a run over a matrix works with. `probes` says of each probe whether it is required."""

    matrix: Matrix
    facts: Facts
    indexes: Indexes
    store: WheelStore
    engine: Engine
    probes: tuple[tuple[Probe, bool], ...]
    images: Path = IMAGES
    reports: Path = Path("reports")
    fresh: bool = False
    """Probe again, and reuse nothing that is published."""
    ledger: Ledger | None = None
    """Looks things up in the registry that verified images go to; None: take nothing from it."""


def policy_of(matrix: Matrix, probes: Iterable[tuple[Probe, bool]]) -> Policy:
    """Return what a cell of the matrix must prove to be verified."""
    required = tuple(
        RequiredProbe(name=probe.name, gpus=probe.gpus)
        for probe, is_required in probes
        if is_required
    )
    ignored = tuple(item.rule for item in matrix.audit.ignore)
    return Policy(probes=required, rules=matrix.audit.required or ("*",), ignored=ignored)


def sizes_of(reports: Path) -> dict[str, ReportedSize]:
    """Return the image sizes in a folder's last report, by cell."""
    try:
        report = read_report(reports)
    except InputError:
        return {}  # no report yet, or one of another version
    return {
        cell.id: ReportedSize(size=cell.image.size_bytes, source=f"report of {report.generated_at}")
        for cell in report.cells
        if cell.image
    }
