"""What probes are run on: the built cells of matrix.yaml, or the present Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchproof.engines.select import choose
from torchproof.errors import HostError, InputError
from torchproof.index.indexes import Indexes
from torchproof.matrix.expand import expand, load_matrix, select
from torchproof.matrix.schema import Matrix
from torchproof.model.lock import Lock
from torchproof.model.lock_file import lock_path, read_lock
from torchproof.model.results import Built
from torchproof.probing.baseline import Baseline, read_baseline
from torchproof.probing.host_python import HostPython
from torchproof.probing.run_probes import Runner, RunOptions
from torchproof.probing.script import Probe, load_probes, select_probes
from torchproof.upstream.facts import load_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One cell on trial and what it has to prove."""

    runner: Runner
    built: Built
    lock: Lock | None
    chosen: tuple[tuple[Probe, bool], ...]
    options: RunOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a user asked for. `only` names cells, `names` probes (separated by commas)."""

    target: str = "image"
    engine: str = "auto"
    builder: str = "docker"
    python: Path | None = None
    matrix: Path = Path("matrix.yaml")
    only: str | None = None
    names: str | None = None
    shm_size: int = 8 * 1024**3
    ranks_per_gpu: int = 1


def find_subjects(choice: Choice, folder: Path) -> tuple[Subject, ...]:
    """Return what was built and is on trial. Raises InputError, HostError or CellError."""
    probes = load_probes(folder)
    match choice.target:
        case "host":
            return (_host(choice, probes),)
        case "image":
            return _cells(choice, probes)
        case _:
            raise InputError(f"no target is called {choice.target!r}", fix="image or host")


def _host(choice: Choice, probes: tuple[Probe, ...]) -> Subject:
    runner = HostPython(choice.python)
    matrix = load_matrix(choice.matrix) if choice.matrix.exists() else None
    return Subject(
        runner=runner,
        built=runner.describe(),
        lock=None,
        chosen=_chosen(choice, probes, matrix),
        options=_options(choice, matrix),
    )


def _cells(choice: Choice, probes: tuple[Probe, ...]) -> tuple[Subject, ...]:
    facts = load_facts()
    matrix = load_matrix(choice.matrix)
    wanted = select(expand(matrix, facts), choice.only)
    indexes = Indexes(pytorch=facts.pytorch_url, urls=matrix.indexes)
    engine = choose(choice.engine, indexes, builder=choice.builder)
    found: list[Subject] = []
    for request in wanted:
        path = lock_path(request.cell.id)
        if not path.exists():
            continue
        lock = read_lock(path)
        built = engine.find(lock)
        if built is not None:
            found.append(
                Subject(
                    runner=engine,
                    built=built,
                    lock=lock,
                    chosen=_chosen(choice, probes, matrix),
                    options=_options(choice, matrix),
                )
            )
    if not found:
        raise HostError(
            f"none of these {len(wanted)} cells is built with the engine {engine.name}",
            fix="`python build.py build` first, or `--target host` for the present Python",
        )
    return tuple(found)


def _chosen(
    choice: Choice, probes: tuple[Probe, ...], matrix: Matrix | None
) -> tuple[tuple[Probe, bool], ...]:
    if matrix is None:
        return select_probes(probes, only=choice.names)
    wanted = matrix.probes
    return select_probes(
        probes,
        required=wanted.required,
        optional=wanted.optional,
        rest=wanted.rest,
        only=choice.names,
    )


def _options(choice: Choice, matrix: Matrix | None) -> RunOptions:
    wanted = matrix.probes if matrix else None
    return RunOptions(
        shm_size=choice.shm_size,
        ranks_per_gpu=choice.ranks_per_gpu,
        thresholds=wanted.thresholds if wanted else {},
        baseline=read_baseline(choice.matrix.parent / wanted.baseline, wanted.bandwidth_tolerance)
        if wanted
        else Baseline(),
    )
