"""`generate`: write `images/<cell>/Dockerfile` from the cell's lock."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from torchproof.commands.options import MatrixFile, Only
from torchproof.errors import Exit
from torchproof.image.generated_files import changes, stale_folders, write_files
from torchproof.matrix.expand import DEFAULT, expand, load_matrix, match_ids
from torchproof.model.lock_file import lock_path, read_lock
from torchproof.upstream.facts import load_facts


def run(
    check: Annotated[
        bool, typer.Option("--check", help="Only compare; on drift show a diff and exit 1.")
    ] = False,
    only: Only = None,
    matrix: MatrixFile = DEFAULT,
) -> int:
    """Write the Dockerfile and the pinned requirements of every cell that has a lock."""
    out = Console(highlight=False, soft_wrap=True, markup=False)
    names = [item.id for item in expand(load_matrix(matrix), load_facts()) if not item.excluded]
    drift = False
    for name in match_ids(names, only):
        if not lock_path(name).exists():
            out.print(f"{name}: has no lock, so no Dockerfile; run `python build.py lock`")
            continue
        changed = _write_or_compare(name, check, out)
        drift = drift or changed
        if not changed:
            out.print(f"{name}: up to date with its lock")
    for folder in stale_folders(names) if only is None else ():
        # Another matrix file may have the cell: only files that differ from their lock are drift.
        out.print(
            f"{folder}: this matrix has no such cell; delete the folder unless another has it"
        )
        locked = (folder / "lock.yaml").exists()
        drift = not locked or _write_or_compare(folder.name, check, out) or drift
    return int(Exit.CELL_FAILED if check and drift else Exit.OK)


def _write_or_compare(name: str, check: bool, out: Console) -> bool:
    """Write a cell's files, or show how they differ; return whether they differed."""
    lock = read_lock(lock_path(name))
    changed = changes(lock) if check else write_files(lock)
    for change in changed:
        out.print(change.diff if check else f"{change.path}: written", end="" if check else "\n")
    return bool(changed)
