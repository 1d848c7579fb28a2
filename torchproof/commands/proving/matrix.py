"""`matrix`: the whole road of every cell; `make matrix` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchproof._progress import Progress
from torchproof.commands.inputs import load_inputs
from torchproof.commands.options import BuilderName, EngineName, MatrixFile, Only
from torchproof.engines.select import choose
from torchproof.errors import Exit
from torchproof.index.indexes import cache_dir
from torchproof.index.wheel_store import WheelStore
from torchproof.matrix.expand import DEFAULT, match_ids
from torchproof.model.results import State
from torchproof.probing.script import load_probes, select_probes
from torchproof.publish.attestation.signing import load_verifying_key
from torchproof.publish.attestation.verification import Trust
from torchproof.publish.reuse import open_ledger
from torchproof.report import summary
from torchproof.report.models import ReportModel
from torchproof.run.pipeline import Pipeline
from torchproof.run.settings import RunSettings


def run(
    only: Only = None,
    *,
    engine: EngineName = "auto",
    builder: BuilderName = "docker",
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 4 if a cell is unproven or blocked.")
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Probe again, and reuse no published image or result.",
        ),
    ] = False,
    key: Annotated[
        Path | None,
        typer.Option(
            help="Public key (PEM, P-256): only published evidence that it signed counts."
        ),
    ] = None,
    matrix: MatrixFile = DEFAULT,
    reports: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("reports"),
) -> int:
    """Plan, lock, generate, build, audit and probe every cell, and report.

    Exit code 1 if a cell failed; 3 if a cell's torch was found, but the machine or the network kept
    it from being tried; 4 with --strict if a cell is unproven or blocked.
    """
    inputs = load_inputs(matrix)
    wanted = inputs.matrix.probes
    probes = select_probes(
        load_probes(), required=wanted.required, optional=wanted.optional, rest=wanted.rest
    )
    cells = inputs.survey()
    names = match_ids([item.id for item in cells], only)
    trust = Trust(key=load_verifying_key(key)) if key else None
    settings = RunSettings(
        matrix=inputs.matrix,
        facts=inputs.facts,
        indexes=inputs.indexes,
        store=WheelStore(cache_dir(), inputs.indexes),
        engine=choose(engine, inputs.indexes, builder=builder),
        probes=probes,
        reports=reports,
        fresh=fresh,
        ledger=None if fresh else open_ledger(inputs.matrix, trust),
    )
    with Progress() as progress:
        pipeline = Pipeline(settings, [item for item in cells if item.id in names], progress)
        report = pipeline.run()
    typer.echo(summary(report))
    typer.echo(f"report: {reports / 'index.html'}")
    return int(exit_code(report, strict=strict, machine_at_fault=pipeline.machine_at_fault()))


def exit_code(report: ReportModel, *, strict: bool, machine_at_fault: bool) -> Exit:
    """Return the exit code of a run, by its worst cell."""
    states = {cell.verdict for cell in report.cells}
    if State.FAILED in states:
        return Exit.CELL_FAILED
    if machine_at_fault:
        return Exit.ENVIRONMENT
    if strict and states & {State.UNPROVEN, State.BLOCKED}:
        return Exit.NOT_PROVEN
    return Exit.OK
