"""The locks of a matrix: keeps what still holds, resolves the rest side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchproof.errors import TorchproofError
from torchproof.index.download import sha256_of
from torchproof.index.wheelhouse import wheelhouse_torch
from torchproof.model.cell import Cell
from torchproof.model.lock import WHEELHOUSE, LayerName, Lock
from torchproof.model.lock_file import IMAGES, lock_path, read_lock, write_lock
from torchproof.resolve.resolver import Resolver
from torchproof.resolve.survey import SurveyedCell
from torchproof.upstream.facts import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """What became of one cell's lock.

    `lock` is None if there is none, and `error` says why. `why` says why a new one was needed;
    it is empty for a lock that was kept. `note` says where the index differs from the data.
    """

    cell: str
    lock: Lock | None
    why: str = ""
    note: str = ""
    error: TorchproofError | None = None


def why_outdated(lock: Lock, cell: Cell, index: str) -> str:
    """Return why a lock is not what its cell asks for; an empty string if it is."""
    wanted = {
        "cell": cell.id,
        "torch": cell.torch,
        "cuda": cell.cuda,
        "python": cell.python,
        "platform": cell.platform,
        "gpus": cell.gpus,
        "compile": cell.compile,
        "rdma": cell.rdma,
    }
    for name, value in wanted.items():
        if getattr(lock, name) != value:
            return f"{name} was {getattr(lock, name)!r}, is {value!r}"
    base = (lock.base.image, lock.base.bootstrap, lock.base.packages)
    if base != (cell.base.image, cell.base.bootstrap, cell.base.packages):
        return "the base differs"
    for title, value in (("cudnn", cell.cudnn), ("nccl", cell.nccl)):
        if value is not None and getattr(lock, title) != value:
            return f"{title} was {getattr(lock, title)}, is {value}"
    chosen = {item.chosen for item in lock.overrides}
    if chosen != {value for value in (cell.cudnn, cell.nccl) if value is not None}:
        return "the overrides differ"
    return _extras_depart(lock, cell) or _torch_departs(lock, cell, index)


def _extras_depart(lock: Lock, cell: Cell) -> str:
    versions = {wheel.name: wheel.version for wheel in lock.wheels}
    for text in cell.extras:
        requirement = Requirement(text)
        version = versions.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            return f"`{text}` is not in it"
    if not cell.extras and lock.layer(LayerName.EXTRAS):
        return "it has extras that are no longer asked for"
    return ""


def _torch_departs(lock: Lock, cell: Cell, index: str) -> str:
    torch = next((wheel for wheel in lock.wheels if wheel.name == "torch"), None)
    if torch is None:
        return "it has no torch"
    if torch.index != index:
        return f"torch came from `{torch.index}`, now comes from `{index}`"
    if index == WHEELHOUSE:
        file = wheelhouse_torch(cell)
        if file is None or file.name != torch.filename or sha256_of(file) != torch.sha256:
            return "the wheelhouse has another torch"
    return ""


def lock_cells(
    surveyed: Iterable[SurveyedCell],
    resolver: Resolver,
    *,
    images: Path = IMAGES,
    upgrade: bool = False,
    done: Callable[[Locked], None] = lambda locked: None,
) -> tuple[Locked, ...]:
    """Lock every cell that can be tried; write `images/<cell>/lock.yaml`.

    One failing cell never stops the others: its error is in its result. `done` is called as
    each cell is ready. Plain cells come before their variants, which share their wheels.
    """
    ready = [item for item in surveyed if item.verdict is None]
    plain = [item for item in ready if _parent(item.cell) == item.id]
    variants = [item for item in ready if _parent(item.cell) != item.id]
    results: dict[str, Locked] = {}
    with ThreadPoolExecutor(min(8, (os.cpu_count() or 2) * 2)) as pool:
        for group in (plain, variants):
            futures = {
                pool.submit(
                    _lock_one, item, resolver, images, upgrade, results.get(_parent(item.cell))
                ): item
                for item in group
            }
            for future in as_completed(futures):
                locked = future.result()
                results[locked.cell] = locked
                done(locked)
    return tuple(results[item.id] for item in ready)


def _parent(cell: Cell) -> str:
    """Return the id of the plain cell that a variant is made from."""
    return Cell(torch=cell.torch, cuda=cell.cuda, python=cell.python, platform=cell.platform).id


def _lock_one(
    item: SurveyedCell, resolver: Resolver, images: Path, upgrade: bool, parent: Locked | None
) -> Locked:
    path = lock_path(item.id, images)
    why = "asked for" if upgrade else "there was none"
    try:
        if path.exists() and not upgrade:
            lock = read_lock(path)
            why = why_outdated(lock, item.cell, item.availability.index)
            if not why:
                return Locked(cell=item.id, lock=lock)
        like = parent.lock if parent else _read(images, _parent(item.cell), item)
        lock = resolver.resolve(item.cell, item.availability.index, like=like)
        write_lock(lock, path)
    except TorchproofError as error:
        return Locked(cell=item.id, lock=None, why=why, error=error)
    return Locked(cell=item.id, lock=lock, why=why, note=differs(lock, resolver.facts))


def differs(lock: Lock, facts: Facts) -> str:
    """Return where the pins of a lock differ from the data; the index is right."""
    release = facts.releases.get(lock.torch)
    build = release.builds.get(lock.cuda) if release else None
    if build is None:
        return ""
    replaced = {item.chosen: item.pinned for item in lock.overrides}
    pairs = (
        ("cuDNN", build.cudnn, replaced.get(lock.cudnn, lock.cudnn)),
        ("NCCL", build.nccl, replaced.get(lock.nccl, lock.nccl)),
        ("triton", build.triton, lock.triton),
    )
    return "; ".join(
        f"the index pins {title} {found or 'none'}, the data says {known}"
        for title, known, found in pairs
        if known is not None and known != found
    )


def _read(images: Path, parent: str, item: SurveyedCell) -> Lock | None:
    path = lock_path(parent, images)
    return read_lock(path) if parent != item.id and path.exists() else None
