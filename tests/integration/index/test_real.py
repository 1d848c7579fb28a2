"""The default package index itself: the committed locks still stand there, and are made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.needs import needs
from torchproof.index.indexes import Indexes
from torchproof.index.wheel_store import WheelStore
from torchproof.matrix.expand import expand, load_matrix
from torchproof.model.lock import LayerName
from torchproof.model.lock_file import read_lock
from torchproof.resolve.resolver import Resolver
from torchproof.upstream.facts import load_facts

pytestmark = needs("network")

ROOT = Path(__file__).parents[3]
FACTS = load_facts()
INDEXES = Indexes(pytorch=FACTS.pytorch_url)
LOCKS = sorted((ROOT / "images").glob("*/lock.yaml"))


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.parent.name)
def test_every_locked_wheel_is_still_on_the_index(path: Path, tmp_path: Path) -> None:
    lock = read_lock(path)
    store = WheelStore(tmp_path, INDEXES)
    store.look_up(lock.wheels)
    for wheel in lock.wheels:
        assert store.url(wheel).startswith("https://")


def test_a_small_locked_wheel_comes_as_promised(tmp_path: Path) -> None:
    lock = read_lock(LOCKS[0])
    smallest = min(lock.wheels, key=lambda wheel: wheel.size)
    path = WheelStore(tmp_path, INDEXES).fetch(smallest, cell=lock.cell)
    assert path.stat().st_size == smallest.size


def test_locking_anew_gives_the_same_gpu_wheels(tmp_path: Path) -> None:
    requests = expand(load_matrix(ROOT / "examples" / "nccl-override.yaml"), FACTS)
    resolver = Resolver(facts=FACTS, indexes=INDEXES, store=WheelStore(tmp_path, INDEXES))
    for request in requests:
        committed = read_lock(ROOT / "images" / request.id / "lock.yaml")
        made = resolver.resolve(request.cell, "pypi")
        assert made.overrides == committed.overrides
        for layer in (LayerName.CUDA, LayerName.CUDNN, LayerName.NCCL):
            assert made.layer(layer) == committed.layer(layer)
