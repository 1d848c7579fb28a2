"""The plan: every cell before a run, with state, reason, layers and bytes. Only reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchproof.errors import InputError
from torchproof.image.layers import Layer, make_plan
from torchproof.model.cell import Cell
from torchproof.model.lock import Lock
from torchproof.model.lock_file import IMAGES, lock_path, read_lock
from torchproof.model.results import State
from torchproof.resolve.relock import why_outdated
from torchproof.resolve.survey import SurveyedCell
from torchproof.upstream.facts import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One cell of the plan. `bytes` is the size of its wheel files; None without a lock."""

    id: str
    torch: str
    cuda: str
    cudnn: str | None
    nccl: str | None
    python: str
    state: State
    reason: str
    source: str
    nearest: tuple[str, ...]
    fix: str
    layers: tuple[Layer, ...]
    bytes: int | None


def plan_rows(
    surveyed: Iterable[SurveyedCell], facts: Facts, *, images: Path = IMAGES
) -> tuple[PlanRow, ...]:
    """Return a row for each cell, from the survey, the locks that exist, and the upstream facts."""
    return tuple(_row(item, facts, images) for item in surveyed)


def _row(item: SurveyedCell, facts: Facts, images: Path) -> PlanRow:
    cell, verdict = item.cell, item.verdict
    lock, remark = _lock(item, images)
    cudnn, nccl = _pins(cell, facts)
    notes = [item.availability.note] if not item.request.excluded else []
    notes.append(remark if verdict is None else verdict.reason)
    return PlanRow(
        id=cell.id,
        torch=cell.torch,
        cuda=cell.cuda,
        cudnn=lock.cudnn if lock else cudnn,
        nccl=lock.nccl if lock else nccl,
        python=cell.python,
        state=verdict.state if verdict else State.PLANNED,
        reason="; ".join(filter(None, reversed(notes))),
        source=verdict.source if verdict else f"index `{item.availability.index}`",
        nearest=verdict.nearest if verdict else (),
        fix=verdict.fix if verdict else "",
        layers=make_plan(lock).layers if lock else (),
        bytes=lock.download_bytes if lock else None,
    )


def _lock(item: SurveyedCell, images: Path) -> tuple[Lock | None, str]:
    path = lock_path(item.id, images)
    if item.verdict is not None and item.verdict.state != State.BLOCKED:
        return None, ""
    if not path.exists():
        return None, "no lock yet"
    try:
        lock = read_lock(path)
    except InputError as error:
        return None, str(error)
    remark = why_outdated(lock, item.cell, item.availability.index)
    return (None, f"its lock is out of date: {remark}") if remark else (lock, "")


def _pins(cell: Cell, facts: Facts) -> tuple[str | None, str | None]:
    """Return the cuDNN and NCCL that the cell asks for, else those that torch pins."""
    release = facts.release(cell.torch)
    build = release.builds.get(cell.cuda) if release else None
    return cell.cudnn or (build.cudnn if build else None), cell.nccl or (
        build.nccl if build else None
    )
