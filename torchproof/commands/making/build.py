"""`build`: cells → images or environments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchproof._progress import Progress
from torchproof.commands.inputs import load_inputs
from torchproof.commands.options import BuilderName, EngineName, MatrixFile, Only
from torchproof.engines.build_cells import BuildResult, build_cells, shared
from torchproof.engines.select import assembler, choose
from torchproof.errors import Exit, HostError, InputError
from torchproof.matrix.expand import DEFAULT, expand, select
from torchproof.model.lock_file import lock_path, locked_versions, read_lock
from torchproof.model.results import State, SubjectKind


def run(
    only: Only = None,
    engine: EngineName = "auto",
    builder: BuilderName = "docker",
    to: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="With --builder assemble: a folder for OCI layouts (default: build/oci), or "
            "REGISTRY/REPOSITORY, where each image is tagged with its cell's id.",
        ),
    ] = None,
    matrix: MatrixFile = DEFAULT,
    reports: Annotated[Path, typer.Option(help="Folder for the build logs.")] = Path("reports"),
) -> int:
    """Build every cell that has a lock; reuse what an earlier run built.

    Exit code 1 if a cell failed, 3 if none failed but none could be built.
    """
    if to and builder != "assemble":
        raise InputError("--to needs --builder assemble", fix="add --builder assemble")
    inputs = load_inputs(matrix)
    maker = (
        assembler(engine, inputs.indexes, to)
        if builder == "assemble"
        else choose(engine, inputs.indexes, builder=builder)
    )
    requests = select(expand(inputs.matrix, inputs.facts, locked_versions()), only)
    missing = [
        request.id
        for request in requests
        if not request.excluded and not lock_path(request.id).exists()
    ]
    with Progress() as progress:
        locks = [
            read_lock(lock_path(request.id))
            for request in requests
            if request.id not in missing and not request.excluded
        ]
        for request in requests:
            if request.excluded:
                progress.done(request.id, f"{State.EXCLUDED}: {request.excluded}")
        # Ask the indexes only if a cell has no lock that says what it is made of.
        verdicts = {cell.id: cell.verdict for cell in inputs.survey()} if missing else {}
        for name in missing:
            verdict = verdicts.get(name)
            if verdict is not None:
                progress.done(name, f"{verdict.state}: {verdict.reason}")
            else:
                progress.done(name, "has no lock; run `python build.py lock`")
        if not locks:
            raise InputError("none of these cells has a lock", fix="run `python build.py lock`")
        results = build_cells(
            maker,
            locks,
            reports=reports,
            say=progress.say,
            done=lambda result: progress.done(result.cell, result_text(result)),
        )
        built = [result.built for result in results if result.built]
        if len(built) > 1:
            sizes = shared(built)
            progress.done(
                "",
                f"{len(built)} cells: {sizes.together / 1e9:.2f} GB on disk, "
                f"{sizes.saved / 1e9:.2f} GB saved by shared layers",
            )
    errors = [result.error for result in results if result.error]
    if any(not isinstance(error, HostError) for error in errors):
        return int(Exit.CELL_FAILED)
    return int(Exit.OK if built else Exit.ENVIRONMENT)


def result_text(result: BuildResult) -> str:
    """Return one or two lines that say how a build ended."""
    if result.built is None:
        word = "blocked" if isinstance(result.error, HostError) else "failed"
        log = f"\n  log: {result.log}" if result.log.exists() else ""
        return f"{word}: {result.error}{log}"
    built = result.built
    what = "image" if built.subject is SubjectKind.IMAGE else "environment (no image)"
    how = "already built" if built.reused else f"built in {built.seconds:.0f} s"
    return f"{what} {built.ref}: {how}, {built.size / 1e9:.2f} GB, {built.digest[:19]}"
