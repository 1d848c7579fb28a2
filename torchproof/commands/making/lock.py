"""`lock`: resolve cells and write `images/<cell>/lock.yaml`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console

from torchproof.commands.inputs import load_inputs
from torchproof.commands.options import MatrixFile, Only
from torchproof.errors import Exit, HostError
from torchproof.index.indexes import cache_dir
from torchproof.index.wheel_store import WheelStore
from torchproof.matrix.expand import DEFAULT, match_ids
from torchproof.model.results import State
from torchproof.resolve.relock import Locked, lock_cells
from torchproof.resolve.resolver import Resolver
from torchproof.resolve.survey import SurveyedCell


def run(
    only: Only = None,
    upgrade: Annotated[
        bool, typer.Option(help="Resolve again, even if a lock still fits.")
    ] = False,
    matrix: MatrixFile = DEFAULT,
) -> int:
    """Resolve cells to exact wheels and write images/CELL/lock.yaml.

    A lock that still fits its cell is kept. Exit code 1 if a cell cannot be resolved; 3 if an index
    does not answer and no cell has a lock.
    """
    out = Console(highlight=False, soft_wrap=True, markup=False)
    inputs = load_inputs(matrix)
    cells = inputs.survey()
    names = set(match_ids([item.id for item in cells], only))
    wanted = [item for item in cells if item.id in names]
    for item in wanted:
        if item.verdict is not None:
            out.print(f"{item.id}: {item.verdict.state}: {item.verdict.reason}")
    store = WheelStore(cache_dir(), inputs.indexes)
    resolver = Resolver(facts=inputs.facts, indexes=inputs.indexes, store=store)
    results = lock_cells(
        wanted, resolver, upgrade=upgrade, done=lambda locked: out.print(_line(locked))
    )
    return int(_exit_code(wanted, results))


def _line(locked: Locked) -> str:
    if locked.error is not None:
        word = "blocked" if isinstance(locked.error, HostError) else "failed"
        return f"{locked.cell}: {word}: {str(locked.error).removeprefix(f'{locked.cell}: ')}"
    assert locked.lock is not None
    lock = locked.lock
    size = f"{lock.download_bytes / 1e9:.2f} GB in {len(lock.wheels)} wheels"
    replaced = "".join(
        f"; {item.name} {item.chosen} instead of {item.pinned}" for item in lock.overrides
    )
    note = f"; {locked.note}" if locked.note else ""
    what = f"locked ({locked.why})" if locked.why else "lock kept"
    return f"{locked.cell}: {what}: {size}, cuDNN {lock.cudnn}, NCCL {lock.nccl}{replaced}{note}"


def _exit_code(wanted: Iterable[SurveyedCell], results: Iterable[Locked]) -> Exit:
    errors = [locked.error for locked in results if locked.error is not None]
    if any(not isinstance(error, HostError) for error in errors):
        return Exit.CELL_FAILED
    blocked = bool(errors) or any(
        item.verdict is not None and item.verdict.state == State.BLOCKED for item in wanted
    )
    have = any(locked.lock is not None for locked in results)
    return Exit.ENVIRONMENT if blocked and not have else Exit.OK
