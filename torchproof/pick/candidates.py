"""Candidates for `pick`: the cells of a matrix, with their locks and their last verdicts."""

from __future__ import annotations

from pathlib import Path

from torchproof.errors import InputError
from torchproof.matrix.expand import expand, load_matrix
from torchproof.model.cell import Cell
from torchproof.model.lock_file import IMAGES, lock_path, read_lock
from torchproof.model.results import NotTried, State
from torchproof.pick.rank import CandidateCell
from torchproof.report.files import REPORT, read_report
from torchproof.report.models import CellModel
from torchproof.upstream.availability import judge
from torchproof.upstream.facts import Facts
from torchproof.upstream.host_fit import ImageNeeds


def candidates(
    matrix: Path, reports: Path, facts: Facts, images: Path = IMAGES
) -> tuple[CandidateCell, ...]:
    """Return every cell of a matrix file. Asks no index: a cell in no report is judged by the data.

    Raises InputError if the matrix or the report cannot be read.
    """
    reported: dict[str, CellModel] = {}
    if (reports / REPORT).exists():
        reported = {cell.id: cell for cell in read_report(reports).cells}
    return tuple(
        _candidate(request.cell, request.excluded, reported.get(request.id), facts, images)
        for request in expand(load_matrix(matrix), facts)
    )


def _candidate(
    cell: Cell, excluded: str, reported: CellModel | None, facts: Facts, images: Path
) -> CandidateCell:
    state, reason = _state(cell, excluded, reported, facts)
    archs, archs_from = _archs(cell, facts, images)
    return CandidateCell(
        needs=ImageNeeds(
            cell=cell.id,
            cuda=cell.cuda,
            platform=cell.platform,
            archs=archs,
            archs_from=archs_from,
        ),
        torch=cell.torch,
        python=cell.python,
        state=state,
        reason=reason,
        ref=reported.image.ref if reported and reported.image else "",
        digest=reported.image.digest if reported and reported.image else "",
    )


def _state(
    cell: Cell, excluded: str, reported: CellModel | None, facts: Facts
) -> tuple[State, str]:
    if excluded:
        return State.EXCLUDED, excluded
    if reported is not None:
        return reported.verdict, reported.reason
    verdict: NotTried | None = judge(cell, facts, wheelhouse=cell.wheelhouse is not None).verdict
    if verdict is None or verdict.state is State.BLOCKED:
        return State.PLANNED, ""
    return verdict.state, verdict.reason


def _archs(cell: Cell, facts: Facts, images: Path) -> tuple[tuple[str, ...], str]:
    """Return the architectures that a cell's image has code for, and how that is known."""
    if cell.gpus:
        return cell.gpus, "this slim image"
    path = lock_path(cell.id, images)
    try:
        lock = read_lock(path) if path.exists() else None
    except InputError:
        lock = None
    if lock is not None and lock.archs:
        return lock.archs, "its lock"
    release = facts.release(cell.torch)
    build = release.builds.get(cell.cuda) if release else None
    return (build.archs_on(cell.platform) if build else ()), "the published build"
