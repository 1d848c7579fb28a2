"""Many cells side by side: faults stay in their cell, disk and cores are kept to."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.image.test_dockerfile import LOCK, wheel
from torchproof._process import RunResult
from torchproof.engines.build_cells import build_cells, bytes_needed, shared
from torchproof.engines.engine import RunSpec
from torchproof.errors import CellError, HostError
from torchproof.image.layers import make_plan
from torchproof.model.lock import LayerName, Lock
from torchproof.model.results import Built, Host, ImageLayer, SubjectKind


def built(lock: Lock, *layers: ImageLayer, reused: bool = False) -> Built:
    return Built(
        cell=lock.cell,
        subject=SubjectKind.IMAGE,
        ref=lock.cell,
        digest="sha256:1",
        size=1,
        layers=layers,
        plan_hash=make_plan(lock).hash,
        seconds=0.0,
        reused=reused,
    )


class Engine:
    """An engine that builds nothing, as long as it is told to."""

    name = "none"
    copies = 2
    parallel = True

    def __init__(self, *, free: int = 10**15, faults: dict[str, BaseException] | None = None):
        self.free, self.faults = free, faults or {}
        self.there: set[str] = set()
        self.made: list[str] = []
        self.at_once = self.most = 0
        self.stopped = False
        self._lock = threading.Lock()

    def host(self) -> Host:
        return Host(engine=self.name)

    def find(self, lock: Lock) -> Built | None:
        return built(lock, reused=True) if lock.cell in self.there else None

    def build(self, lock: Lock, *, folder: Path, log: Path) -> Built:
        with self._lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        time.sleep(0.02)
        with self._lock:
            self.at_once -= 1
        if lock.cell in self.faults:
            raise self.faults[lock.cell]
        self.made.append(lock.cell)
        return built(lock)

    def run(self, built: Built, spec: RunSpec) -> RunResult:
        raise NotImplementedError

    def stop(self) -> None:
        self.stopped = True

    def free_bytes(self) -> int:
        return self.free


def cells(*names: str) -> list[Lock]:
    return [replace(LOCK, cell=name) for name in names]


def test_results_come_in_the_order_of_the_locks(tmp_path: Path) -> None:
    engine = Engine()
    results = build_cells(engine, cells("b", "a", "c"), reports=tmp_path, jobs=3)
    assert [result.cell for result in results] == ["b", "a", "c"]


def test_a_fault_stays_in_its_cell(tmp_path: Path) -> None:
    faults: dict[str, BaseException] = {
        "a": CellError("bad wheel"),
        "b": HostError("engine gone"),
        "c": OSError(28, "No space left on device"),
    }
    engine = Engine(faults=faults)
    results = build_cells(engine, cells("a", "b", "c", "d"), reports=tmp_path, jobs=2)
    kinds = [type(result.error) for result in results]
    assert kinds == [CellError, HostError, HostError, type(None)]
    assert engine.made == ["d"]


def test_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    engine = Engine()
    engine.there = {"a"}
    results = build_cells(engine, cells("a", "b"), reports=tmp_path)
    assert engine.made == ["b"]
    assert results[0].built is not None
    assert results[0].built.reused


def test_no_more_run_at_once_than_jobs(tmp_path: Path) -> None:
    engine = Engine()
    build_cells(engine, cells(*"abcdefgh"), reports=tmp_path, jobs=3)
    assert engine.most <= 3
    assert len(engine.made) == 8


def test_a_disk_that_is_too_small_blocks_before_anything_is_built(tmp_path: Path) -> None:
    engine = Engine(free=1000)
    (result,) = build_cells(engine, cells("a"), reports=tmp_path)
    assert isinstance(result.error, HostError)
    assert "needs about" in str(result.error)
    assert engine.made == []


def test_a_disk_with_room_for_one_builds_one_after_the_other(tmp_path: Path) -> None:
    plan = make_plan(LOCK)
    engine = Engine(free=int(bytes_needed(plan, 2) * 1.5))
    different = [
        replace(LOCK, cell=name, base=replace(LOCK.base, packages=(name,))) for name in "abc"
    ]
    results = build_cells(engine, different, reports=tmp_path, jobs=3)
    assert all(result.built for result in results)
    assert engine.most == 1


def test_layers_that_are_there_need_no_room() -> None:
    override = wheel("nvidia-nccl-cu12", "2.30.7", LayerName.NCCL)
    other = make_plan(replace(LOCK, wheels=(*LOCK.wheels[:4], override)))
    known = {layer.key for layer in make_plan(LOCK).layers}
    assert bytes_needed(other, 1, known) == int(2.2 * override.size)


def test_an_interrupt_stops_the_engine_and_goes_on_up(tmp_path: Path) -> None:
    engine = Engine()

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_cells(engine, cells("a", "b"), reports=tmp_path, done=interrupt)
    assert engine.stopped


def test_shared_bytes_count_equal_layers_once() -> None:
    base = ImageLayer(name="base", digest="sha256:b", size=100)
    one, two = (ImageLayer(name="nccl", digest=f"sha256:{name}", size=10) for name in "12")
    sizes = shared([built(LOCK, base, one), built(LOCK, base, two)])
    assert (sizes.alone, sizes.together, sizes.saved) == (220, 120, 100)
