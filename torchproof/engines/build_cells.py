"""Builds many cells side by side, as far as cores and disk allow. One that fails stops no other."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from torchproof.engines.engine import Engine
from torchproof.errors import HostError, TorchproofError
from torchproof.image.layers import Plan, make_plan
from torchproof.model.lock import LayerName, Lock
from torchproof.model.lock_file import IMAGES
from torchproof.model.results import Built

UNPACKED = 2.2
"""Bytes on disk for a byte of wheel. Measured: torch 2.7.1+cu126 1.8, torch 2.9.1+cu128 2.1."""
BASE_BYTES = 600_000_000
"""A base with a compiler, measured: 0.5 GB."""

Say = Callable[[str, str], None]
"""Told of each step: the cell's name and what happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """What became of one cell: either `built` or `error`. `log` may be missing if nothing ran."""

    cell: str
    built: Built | None
    error: TorchproofError | None
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What cells of one engine share. Bytes: as if each stood alone, and as they are."""

    alone: int
    together: int

    @property
    def saved(self) -> int:
        """Bytes that sharing saves."""
        return self.alone - self.together


def build_cells(
    engine: Engine,
    locks: Sequence[Lock],
    *,
    reports: Path,
    images: Path = IMAGES,
    say: Say = lambda _cell, _text: None,
    done: Callable[[BuildResult], None] = lambda _result: None,
    jobs: int | None = None,
) -> tuple[BuildResult, ...]:
    """Build cells, or find them built already; the results are in the order of the locks.

    `done` is called in this thread, as each cell ends. Logs go to `reports/cells/<id>/logs`. A
    fault of a cell or of the machine becomes the cell's result. On KeyboardInterrupt everything
    that was started is stopped before it propagates; finished cells are kept.
    """
    work = _Work(engine=engine, reports=reports, images=images)
    jobs = jobs or _jobs(engine)
    results: dict[str, BuildResult] = {}
    waiting, running = list(locks), dict[Future[BuildResult], int]()

    def end(result: BuildResult) -> None:
        results[result.cell] = result
        done(result)

    pool = ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="build")
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                ready = work.ready(waiting[0], reserved=sum(running.values()))
                if ready is None and running:
                    break  # too little disk: a running build may leave room, or layers to share
                lock = waiting.pop(0)
                if isinstance(ready, BuildResult):
                    end(ready)
                elif ready is None:
                    end(work.no_room(lock))
                else:
                    say(lock.cell, f"building, about {ready / 1e9:.1f} GB")
                    running[pool.submit(work.build, lock)] = ready
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                del running[future]
                end(future.result())
    except BaseException:
        engine.stop()
        # A build that is between two programs just now would start its next one: stop again.
        while wait(running, timeout=0.2).not_done:
            engine.stop()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return tuple(results[lock.cell] for lock in locks)


def bytes_needed(plan: Plan, copies: int, known: Collection[str] = ()) -> int:
    """Estimate the disk that building a cell takes, in bytes.

    `copies` is the engine's number of unpacked copies, `known` the keys of layers that are there
    already, from other cells.
    """
    new = [layer for layer in plan.layers if layer.key not in known]
    base = BASE_BYTES if any(layer.name == LayerName.BASE for layer in new) else 0
    return int(copies * UNPACKED * sum(layer.download_bytes for layer in new)) + base


def shared(cells: Iterable[Built]) -> Shared:
    """Return what the layers of several cells weigh, apart and together."""
    layers = [layer for built in cells for layer in built.layers]
    distinct = {layer.digest: layer.size for layer in layers}
    return Shared(alone=sum(layer.size for layer in layers), together=sum(distinct.values()))


def _jobs(engine: Engine) -> int:
    """Return how many cells to build at once: each keeps about two cores busy, but not always."""
    return max(2, min(4, (os.cpu_count() or 1) // 2)) if engine.parallel else 1


class _Work:
    """Takes one cell at a time; remembers which layers are there."""

    def __init__(self, *, engine: Engine, reports: Path, images: Path) -> None:
        self._engine, self._reports, self._images = engine, reports, images
        self._known: set[str] = set()

    def ready(self, lock: Lock, *, reserved: int) -> BuildResult | int | None:
        """Return the cell if it is there or cannot be, the bytes it needs, or None: no room."""
        plan = make_plan(lock)
        try:
            if found := self._engine.find(lock):
                self._known |= {layer.key for layer in plan.layers}
                return self._result(lock, built=found)
            need = bytes_needed(plan, self._engine.copies, self._known)
            return need if need <= self._engine.free_bytes() - reserved else None
        except TorchproofError as error:
            return self._result(lock, error=error)

    def build(self, lock: Lock) -> BuildResult:
        """Build a cell; every fault is in the result."""
        plan, log = make_plan(lock), self._log(lock)
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.unlink(missing_ok=True)
            built = self._engine.build(lock, folder=self._images / lock.cell, log=log)
        except TorchproofError as error:
            return self._result(lock, error=error)
        except OSError as error:
            fault = HostError(
                f"{lock.cell}: {error.filename or 'the disk'}: {error.strerror or error}",
                fix="see that the disk has room and can be written, then run again",
            )
            return self._result(lock, error=fault)
        self._known |= {layer.key for layer in plan.layers}
        return self._result(lock, built=built)

    def no_room(self, lock: Lock) -> BuildResult:
        """Return the cell as blocked: its estimate is more than what is free."""
        need = bytes_needed(make_plan(lock), self._engine.copies, self._known)
        error = HostError(
            f"{lock.cell} needs about {need / 1e9:.1f} GB of disk, "
            f"{self._engine.free_bytes() / 1e9:.1f} GB are free",
            fix="free some space, or set TORCHPROOF_CACHE to a larger disk, and run again",
        )
        return self._result(lock, error=error)

    def _result(
        self, lock: Lock, *, built: Built | None = None, error: TorchproofError | None = None
    ) -> BuildResult:
        return BuildResult(cell=lock.cell, built=built, error=error, log=self._log(lock))

    def _log(self, lock: Lock) -> Path:
        return self._reports / "cells" / lock.cell / "logs" / "build.log"
