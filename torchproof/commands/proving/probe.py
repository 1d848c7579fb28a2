"""`probe`: run the probe scripts on the built cells, or in the current Python."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pytest
import typer
from rich.console import Console

from torchproof.commands.options import BuilderName, EngineName
from torchproof.errors import Exit, HostError, InputError
from torchproof.matrix.expand import load_matrix
from torchproof.probing.baseline import read_baseline
from torchproof.probing.baseline import record as record_baseline
from torchproof.probing.script import PROBES
from torchproof.probing.subjects import Choice, Subject, find_subjects
from torchproof.run.probe_report import results_of, results_table, write_report

SETTINGS = {"context_settings": {"allow_interspersed_args": False}}
PLUGIN = "torchproof.probing.plugin"


def run(
    pytest_args: Annotated[list[str] | None, typer.Argument(help="Arguments for pytest.")] = None,
    *,
    only: Annotated[str | None, typer.Option(help="Only these cells: a glob.")] = None,
    probes: Annotated[
        str | None, typer.Option(help="Only these probes: names, comma-separated.")
    ] = None,
    target: Annotated[
        str, typer.Option(help="image (the built cells) or host (the current Python).")
    ] = "image",
    engine: EngineName = "auto",
    builder: BuilderName = "docker",
    python: Annotated[Path | None, typer.Option(help="For host: the Python to use.")] = None,
    matrix: Annotated[Path, typer.Option(help="The matrix file.")] = Path("matrix.yaml"),
    folder: Annotated[Path, typer.Option(help="Folder of probe scripts.")] = PROBES,
    reports: Annotated[Path, typer.Option(help="Folder for results.")] = Path("reports"),
    shm_mib: Annotated[int, typer.Option(help="Size of /dev/shm in containers, MiB.")] = 8192,
    ranks_per_gpu: Annotated[int, typer.Option(help="NCCL ranks on each GPU.")] = 1,
    record: Annotated[
        bool, typer.Option("--record-baseline", help="Record bandwidths as the baseline.")
    ] = False,
    strict: Annotated[bool, typer.Option(help="Exit 4 if a required probe was skipped.")] = False,
) -> int:
    """Run the probe scripts under pytest; its own options go after `--`."""
    choice = Choice(
        target=target,
        engine=engine,
        builder=builder,
        python=python,
        matrix=matrix,
        only=only,
        names=probes,
        shm_size=shm_mib * 1024**2,
        ranks_per_gpu=ranks_per_gpu,
    )
    # Looked up here first, so that wrong input or a machine at fault is reported by us, not pytest.
    subjects = find_subjects(choice, folder)
    options = {
        "--probe-target": target,
        "--probe-engine": engine,
        "--probe-builder": builder,
        "--probe-python": python,
        "--probe-matrix": matrix,
        "--probe-cells": only,
        "--probe-names": probes,
        "--probe-reports": reports,
        "--probe-shm": shm_mib,
        "--probe-ranks-per-gpu": ranks_per_gpu,
    }
    arguments = [f"{name}={value}" for name, value in options.items() if value is not None]
    if not any(point.value == PLUGIN for point in _plugins()):
        arguments = ["-p", PLUGIN, *arguments]
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main([str(folder), *arguments, *(pytest_args or [])])
    _check_exit(code, pytest_args or [])
    if target == "host":
        write_report(subjects, folder, reports)
    if record:
        _record_baseline(subjects, matrix, reports)
    table, worst = results_table(subjects, reports)
    Console(highlight=False, soft_wrap=True, markup=False).print(table)
    return int(Exit.OK if worst is Exit.NOT_PROVEN and not strict else worst)


def _record_baseline(subjects: Sequence[Subject], matrix: Path, reports: Path) -> None:
    wanted = load_matrix(matrix).probes
    path = matrix.parent / wanted.baseline
    baseline = read_baseline(path, wanted.bandwidth_tolerance)
    kept = [result for subject in subjects for result in results_of(subject, reports)]
    count = record_baseline(kept, path, baseline)
    if count == 0:
        raise HostError("no bandwidth was measured between two or more ranks: nothing to record")


def _check_exit(code: int, arguments: list[str]) -> None:
    match code:
        case pytest.ExitCode.NO_TESTS_COLLECTED:
            raise InputError(
                f"no probe matches {' '.join(arguments)}",
                fix="`-- --collect-only -q` lists the probes",
            )
        case pytest.ExitCode.USAGE_ERROR:
            raise InputError("pytest does not know these arguments", fix="see `pytest --help`")
        case pytest.ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        case pytest.ExitCode.INTERNAL_ERROR:
            raise HostError("pytest itself failed; its output says where")


def _plugins() -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group="pytest11")
