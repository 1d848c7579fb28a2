"""`generate`: locks → `images/<cell>/Dockerfile`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from torchproof.commands.options import MatrixFile, Only
from torchproof.errors import Exit
from torchproof.facts import load_facts
from torchproof.generating import changes, stale_folders, write_files
from torchproof.lockfile import lock_path, read_lock
from torchproof.matrix import DEFAULT, expand, load_matrix, match_ids


def run(
    check: Annotated[
        bool, typer.Option("--check", help="Only compare; exit code 1 and a diff on drift.")
    ] = False,
    only: Only = None,
    matrix: MatrixFile = DEFAULT,
) -> int:
    """Write the Dockerfile and the pinned requirements of every cell that has a lock."""
    out = Console(highlight=False, soft_wrap=True, markup=False)
    requests = [item for item in expand(load_matrix(matrix), load_facts()) if not item.excluded]
    names = [item.id for item in requests]
    drift = False
    for name in match_ids(names, only):
        if not lock_path(name).exists():
            out.print(f"{name}: has no lock, so no Dockerfile; `python build.py lock` makes it")
            continue
        lock = read_lock(lock_path(name))
        made = changes(lock) if check else write_files(lock)
        drift = drift or bool(made)
        for change in made:
            out.print(
                change.diff if check else f"{change.path}: written", end="" if check else "\n"
            )
        if not made:
            out.print(f"{name}: as its lock gives it")
    for folder in stale_folders(names) if only is None else ():
        drift = True
        out.print(
            f"{folder}: the matrix has no such cell; delete the folder, or bring the cell back"
        )
    return int(Exit.CELL_FAILED if check and drift else Exit.OK)
