from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchproof.errors import InputError
from torchproof.matrix.expand import expand, load_matrix
from torchproof.model.cell import Cell
from torchproof.model.lock import LayerName, Lock, LockedWheel
from torchproof.model.lock_file import lock_path, read_lock, render_lock, write_lock
from torchproof.resolve.relock import differs, why_outdated
from torchproof.upstream.facts import load_facts

ROOT = Path(__file__).parents[3]
LOCKS = sorted((ROOT / "images").glob("*/lock.yaml"))
FACTS = load_facts()


def _asked() -> dict[str, Cell]:
    files = (ROOT / "matrix.yaml", ROOT / "examples" / "nccl-override.yaml")
    return {
        request.id: request.cell for file in files for request in expand(load_matrix(file), FACTS)
    }


def test_the_committed_locks_are_the_three_that_need_one_index() -> None:
    assert {path.parent.name for path in LOCKS} >= {
        "2.7.1-cu126-py311",
        "2.9.1-cu128-py311",
        "2.9.1-cu128-py311-nccl2.30.7",
    }


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.parent.name)
def test_a_committed_lock_is_what_its_cell_asks_for(path: Path) -> None:
    lock = read_lock(path)
    assert why_outdated(lock, _asked()[lock.cell], "pypi") == ""
    assert render_lock(lock) == path.read_text(encoding="utf-8")
    assert all(len(wheel.sha256) == 64 and wheel.size > 0 for wheel in lock.wheels)
    assert "://" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.parent.name)
def test_a_committed_lock_has_the_versions_of_the_data(path: Path) -> None:
    lock = read_lock(path)
    build = FACTS.releases[lock.torch].builds[lock.cuda]
    replaced = {override.name: override.pinned for override in lock.overrides}
    assert lock.cudnn == build.cudnn
    assert lock.triton == build.triton
    assert replaced.get("nvidia-nccl-cu12", lock.nccl) == build.nccl
    assert lock.archs == build.archs
    assert lock.driver_floor == "525.60.13"


def test_the_override_shares_everything_below_nccl() -> None:
    plain, other = (
        read_lock(lock_path(f"2.9.1-cu128-py311{more}", ROOT / "images"))
        for more in ("", "-nccl2.30.7")
    )
    for layer in (LayerName.CUDA, LayerName.CUDNN, LayerName.TORCH):
        assert plain.layer(layer) == other.layer(layer)


def _lock() -> Lock:
    return read_lock(LOCKS[0])


def test_writing_equal_content_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "cell" / "lock.yaml"
    write_lock(_lock(), path)
    before = path.stat().st_mtime_ns
    write_lock(_lock(), path)
    assert path.stat().st_mtime_ns == before
    assert [file.name for file in path.parent.iterdir()] == ["lock.yaml"]


@pytest.mark.parametrize(
    "text", ["", "[]", "just text", "cell: x", "cell: [", "\x00", "wheels: 5\ncell: x\n"]
)
def test_what_is_no_lock_is_refused_by_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lock.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_lock(path)
    assert str(path) in str(caught.value)
    assert caught.value.fix


def test_a_lock_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no lock"):
        read_lock(tmp_path / "lock.yaml")


@pytest.mark.parametrize(
    "change",
    [
        {"torch": "2.7.0"},
        {"cuda": "cu128"},
        {"nccl": "2.27.5"},
        {"cudnn": "9.10.2.21"},
        {"compile": False},
        {"rdma": True},
        {"extras": ("numpy",)},
        {"extras": ("filelock==0.1",)},
        {"gpus": ("sm_90",)},
        {"python": "3.12"},
    ],
)
def test_a_lock_departs_from_a_cell_that_changed(change: dict[str, object]) -> None:
    lock = _lock()
    cell = _asked()[lock.cell]
    assert why_outdated(lock, cell, "pypi") == ""
    assert why_outdated(lock, replace(cell, **change), "pypi")  # type: ignore[arg-type]


def test_a_lock_departs_when_torch_comes_from_elsewhere() -> None:
    lock = _lock()
    assert "pytorch/cu126" in why_outdated(lock, _asked()[lock.cell], "pytorch/cu126")


def test_pins_that_differ_from_the_data_are_told() -> None:
    assert differs(_lock(), FACTS) == ""
    assert "the data says" in differs(replace(_lock(), cudnn="9.9.9.9"), FACTS)


_NAMES = st.text("abcdefghij0123456789-", min_size=1, max_size=12)
_WHEELS = st.builds(
    LockedWheel,
    name=_NAMES,
    version=st.sampled_from(["1.0", "2.30", "1e3", "0x10", "1_000", "2026.1", "yes", "null"]),
    filename=_NAMES,
    sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
    size=st.integers(1, 2**40),
    index=st.sampled_from(["pypi", "pytorch/cu118", "wheelhouse"]),
    layer=st.sampled_from(LayerName),
)


@settings(deadline=None)
@given(st.lists(_WHEELS, max_size=4).map(tuple))
def test_any_lock_comes_back_as_written(wheels: tuple[LockedWheel, ...]) -> None:
    import tempfile

    lock = replace(_lock(), wheels=wheels)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lock.yaml"
        write_lock(lock, path)
        assert read_lock(path) == lock
        assert read_lock(path).digest == lock.digest
