"""`publish`: push proven images with their evidence, and move their tags last."""

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
from torchproof.publish.publisher import PublishResult, Target, decisions_for, publish
from torchproof.publish.tags import immutable_tag, moving_tags, parse_immutable
from torchproof.registry import Reference, Registry
from torchproof.report import read_report
from torchproof.report.models import ReportModel


def run(
    only: Only = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be published.")
    ] = False,
    stage: Annotated[
        bool, typer.Option("--stage", help="Push content and evidence only; set no tag.")
    ] = False,
    key: Annotated[
        Path | None,
        typer.Option(
            envvar="TORCHPROOF_SIGNING_KEY",
            help="Private key (PEM, P-256) that signs the evidence.",
        ),
    ] = None,
    matrix: MatrixFile = DEFAULT,
    reports: Annotated[Path, typer.Option(help="Folder of the run's report.")] = Path("reports"),
    images: Annotated[Path, typer.Option(help="Folder of the cells' locks.")] = IMAGES,
) -> int:
    """Push exactly the tested images that are verified, with their evidence. Never builds."""
    wanted = load_matrix(matrix)
    where = repository_of(wanted, matrix)
    report = read_report(reports)
    cells = match_ids([cell.id for cell in report.cells], only)
    signing: SigningKey | None = load_signing_key(key) if key else None
    if dry_run:
        return _preview(report, cells, wanted, where)
    with Registry(where.registry) as registry:
        target = Target(
            registry=registry,
            repository=where.repository,
            scratch=cache_dir() / "publish",
            images=images,
            key=signing,
            accept_unproven=wanted.publish.accept_unproven,
            stage=stage,
            say=_print,
        )
        result = publish(report, cells, target)
    _print_result(result, where)
    done = not result.failed and (result.published or not result.refused or stage)
    return int(Exit.OK if done else Exit.CELL_FAILED)


def repository_of(matrix: Matrix, path: Path) -> Reference:
    """Return the repository that matrix.yaml publishes to. Raise `InputError` if it names none."""
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
    for decision in decisions_for(report, cells, matrix.publish.accept_unproven):
        if not decision.allowed:
            _print(decision.cell, f"refused: {decision.reason}")
            continue
        allowed += 1
        name = parse_immutable(immutable_tag(decision.cell, locks[decision.cell]))
        if name is not None:
            movable = ", ".join(moving_tags(name))
            _print(decision.cell, f"would be {where}:{name.tag}, and may move {movable}")
    return int(Exit.OK if allowed or not cells else Exit.CELL_FAILED)


def _print_result(result: PublishResult, where: Reference) -> None:
    for decision in result.refused:
        _print(decision.cell, f"refused: {decision.reason}")
    for error in result.failed:
        typer.echo(f"error: {error}", err=True)
    for image in result.published:
        _print(image.cell, f"{where}:{image.tag.tag}@{image.digest}")
    for moved in result.moved:
        state = "is" if moved.before == moved.digest else "moved to"
        _print("", f"{where}:{moved.tag} {state} {moved.name}")


def _print(cell: str, text: str) -> None:
    typer.echo(f"{cell}: {text}" if cell else text)
