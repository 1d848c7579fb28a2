"""`publish`: push what is proven, with its evidence, and move its tags last."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchproof.commands.options import MatrixFile, Only
from torchproof.errors import Exit, InputError
from torchproof.index.indexes import cache_dir
from torchproof.matrix.expand import DEFAULT, load_matrix, match_ids
from torchproof.matrix.schema import Matrix
from torchproof.model.lock_file import IMAGES
from torchproof.publish.attestation.signing import SigningKey, load_signing_key
from torchproof.publish.publisher import Outcome, Target, decisions_for, publish
from torchproof.publish.tags import immutable_tag, moving_tags, parse_immutable
from torchproof.registry import Reference, Registry
from torchproof.report import read_report
from torchproof.report.models import ReportModel


def run(
    only: Only = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
    stage: Annotated[
        bool, typer.Option("--stage", help="Push content and evidence; put and move no tag.")
    ] = False,
    key: Annotated[
        Path | None,
        typer.Option(
            envvar="TORCHPROOF_SIGNING_KEY", help="Private key (PEM, P-256) to sign evidence with."
        ),
    ] = None,
    matrix: MatrixFile = DEFAULT,
    reports: Annotated[Path, typer.Option(help="Folder of the run's report.")] = Path("reports"),
    images: Annotated[Path, typer.Option(help="Folder of the cells' locks.")] = IMAGES,
) -> int:
    """Push exactly the tested images that are verified, with their evidence. Never builds."""
    asked = load_matrix(matrix)
    where = repository_of(asked, matrix)
    report = read_report(reports)
    cells = match_ids([cell.id for cell in report.cells], only)
    signing: SigningKey | None = load_signing_key(key) if key else None
    if dry_run:
        return _preview(report, cells, asked, where)
    with Registry(where.registry) as registry:
        target = Target(
            registry=registry,
            repository=where.repository,
            scratch=cache_dir() / "publish",
            images=images,
            key=signing,
            accept_unproven=asked.publish.accept_unproven,
            stage=stage,
            say=_say,
        )
        outcome = publish(report, cells, target)
    _tell(outcome, where)
    done = not outcome.failed and (outcome.published or not outcome.refused or stage)
    return int(Exit.OK if done else Exit.CELL_FAILED)


def repository_of(matrix: Matrix, path: Path) -> Reference:
    """Return where matrix.yaml says to publish. Raise `InputError` if it does not say."""
    if not matrix.publish.registry:
        raise InputError(
            "publish.registry is not set",
            where=str(path),
            fix="write `publish: {registry: registry.example.org, repository: ai/torch}`",
        )
    return Reference.parse(f"{matrix.publish.registry}/{matrix.publish.repository}")


def _preview(report: ReportModel, cells: tuple[str, ...], matrix: Matrix, where: Reference) -> int:
    allowed = 0
    locks = {cell.id: cell.lock_digest for cell in report.cells}
    for one in decisions_for(report, cells, matrix.publish.accept_unproven):
        if not one.allowed:
            _say(one.cell, f"refused: {one.reason}")
            continue
        allowed += 1
        name = parse_immutable(immutable_tag(one.cell, locks[one.cell]))
        if name is not None:
            may = ", ".join(moving_tags(name))
            _say(one.cell, f"would be {where}:{name.tag}, and may move {may}")
    return int(Exit.OK if allowed or not cells else Exit.CELL_FAILED)


def _tell(outcome: Outcome, where: Reference) -> None:
    for decision in outcome.refused:
        _say(decision.cell, f"refused: {decision.reason}")
    for error in outcome.failed:
        typer.echo(f"error: {error}", err=True)
    for one in outcome.published:
        _say(one.cell, f"{where}:{one.tag.tag}@{one.digest}")
    for moved in outcome.moved:
        state = "is" if moved.before == moved.digest else "moved to"
        _say("", f"{where}:{moved.tag} {state} {moved.name}")


def _say(cell: str, text: str) -> None:
    typer.echo(f"{cell}: {text}" if cell else text)
