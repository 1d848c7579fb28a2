"""The wheel store against a real server and its faults: truncated, stalled, replaced, at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.fakeindex import FakeIndex, Fault, Wheel, make_wheel
from torchproof.errors import CellError, HostError, IndexUnreachableError, IntegrityError
from torchproof.index.indexes import Indexes
from torchproof.index.wheel_store import WheelStore
from torchproof.model.lock import LayerName, LockedWheel

BIG = make_wheel("big", "1.0", files={"big/data.bin": bytes(range(256)) * 20_000})
LOCAL = make_wheel("torch", "2.7.1+cu118", tag="cp311-cp311-manylinux_2_28_x86_64")


def _locked(wheel: Wheel, index: str = "pypi", **change: object) -> LockedWheel:
    values: dict[str, object] = {
        "name": wheel.project,
        "version": wheel.filename.split("-")[1],
        "filename": wheel.filename,
        "sha256": wheel.sha256,
        "size": len(wheel.data),
        "index": index,
        "layer": LayerName.TORCH,
    }
    return LockedWheel(**(values | change))  # type: ignore[arg-type]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    with FakeIndex({"pypi": [BIG], "pytorch/cu118": [LOCAL]}) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path, index: FakeIndex) -> WheelStore:
    return WheelStore(tmp_path / "cache", Indexes(pytorch="", urls=index.urls))


def _downloads(index: FakeIndex, wheel: Wheel) -> int:
    return index.requests.count(f"GET /files/{wheel.filename}")


def test_a_wheel_is_downloaded_once(store: WheelStore, index: FakeIndex, tmp_path: Path) -> None:
    wheel = _locked(BIG)
    assert store.path(wheel) is None
    path = store.fetch(wheel)
    assert path == tmp_path / "cache" / "wheels" / BIG.sha256 / BIG.filename
    assert path.read_bytes() == BIG.data
    before = len(index.requests)
    assert store.fetch(wheel) == store.path(wheel) == path
    assert len(index.requests) == before


def test_progress_tells_every_byte(store: WheelStore) -> None:
    told: list[int] = []
    store.fetch(_locked(BIG), progress=told.append)
    assert sum(told) == len(BIG.data)


def test_a_file_of_the_pytorch_index_is_found_by_its_decoded_name(
    store: WheelStore, index: FakeIndex
) -> None:
    wheel = _locked(LOCAL, "pytorch/cu118")
    assert store.url(wheel).endswith("%2Bcu118-cp311-cp311-manylinux_2_28_x86_64.whl")
    assert store.fetch(wheel).read_bytes() == LOCAL.data


def test_a_connection_that_breaks_is_taken_up_where_it_broke(
    store: WheelStore, index: FakeIndex
) -> None:
    index.faults[BIG.filename] = Fault.TRUNCATED
    told: list[int] = []
    assert store.fetch(_locked(BIG), progress=told.append).read_bytes() == BIG.data
    assert _downloads(index, BIG) == 2
    assert sum(told) == len(BIG.data)


def test_a_part_of_an_earlier_run_is_taken_up(
    store: WheelStore, index: FakeIndex, tmp_path: Path
) -> None:
    part = tmp_path / "cache" / "wheels" / BIG.sha256 / f"{BIG.filename}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(BIG.data[:1000])
    told: list[int] = []
    assert store.fetch(_locked(BIG), progress=told.append).read_bytes() == BIG.data
    assert sum(told) == len(BIG.data) - 1000
    assert not part.exists()


def test_a_part_of_another_file_is_thrown_away_and_fetched_again(
    store: WheelStore, tmp_path: Path
) -> None:
    part = tmp_path / "cache" / "wheels" / BIG.sha256 / f"{BIG.filename}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)
    assert store.fetch(_locked(BIG)).read_bytes() == BIG.data


def test_a_wheel_that_is_truncated_at_its_source_is_named(
    store: WheelStore, index: FakeIndex
) -> None:
    index.faults[BIG.filename] = Fault.CUT
    with pytest.raises(IntegrityError, match="truncated") as caught:
        store.fetch(_locked(BIG), cell="2.9.1-cu128-py311")
    assert BIG.filename in str(caught.value)
    assert "2.9.1-cu128-py311" in str(caught.value)


def test_a_wrong_hash_in_a_lock_names_cell_wheel_and_both_hashes(store: WheelStore) -> None:
    with pytest.raises(IntegrityError) as caught:
        store.fetch(_locked(BIG, sha256="0" * 64), cell="2.9.1-cu128-py311")
    for part in ("2.9.1-cu128-py311", BIG.filename, BIG.sha256, "0" * 64):
        assert part in str(caught.value)


def test_nothing_wrong_stays_in_the_store(store: WheelStore, tmp_path: Path) -> None:
    wheel = _locked(BIG, sha256="0" * 64)
    with pytest.raises(IntegrityError):
        store.fetch(wheel)
    assert store.path(wheel) is None
    assert [file for file in (tmp_path / "cache").rglob("*.whl*") if file.is_file()] == []


def test_a_replaced_file_on_disk_is_not_taken(store: WheelStore) -> None:
    wheel = _locked(BIG)
    store.fetch(wheel).write_bytes(b"short")
    assert store.path(wheel) is None
    assert store.fetch(wheel).read_bytes() == BIG.data


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.FORBIDDEN])
def test_a_server_that_refuses_is_a_fault_of_the_host(
    store: WheelStore, index: FakeIndex, fault: Fault
) -> None:
    store.look_up([_locked(BIG)])
    index.faults[BIG.filename] = fault
    with pytest.raises(IndexUnreachableError, match=fault.value):
        store.fetch(_locked(BIG))


def test_a_server_that_stalls_is_a_fault_of_the_host(
    store: WheelStore, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchproof.index.download._READ", httpx.Timeout(0.3))
    store.look_up([_locked(BIG)])
    index.faults[BIG.filename] = Fault.STALL
    with pytest.raises(IndexUnreachableError, match="no data in time"):
        store.fetch(_locked(BIG))


def test_a_file_that_the_index_lost_is_a_fault_of_the_cell(
    store: WheelStore, index: FakeIndex
) -> None:
    gone = make_wheel("torch", "2.7.0+cu118", tag="cp311-cp311-manylinux_2_28_x86_64")
    with pytest.raises(CellError, match="any more"):
        store.fetch(_locked(gone, "pytorch/cu118"))


def test_a_cache_that_cannot_be_written_is_a_fault_of_the_host(
    index: FakeIndex, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    store = WheelStore(tmp_path / "file", Indexes(pytorch="", urls=index.urls))
    with pytest.raises(HostError):
        store.fetch(_locked(BIG))


def test_many_threads_download_once(store: WheelStore, index: FakeIndex) -> None:
    gate = threading.Barrier(8)

    def fetch(_: int) -> Path:
        gate.wait()
        return store.fetch(_locked(BIG))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(fetch, range(8)))) == 1
    assert _downloads(index, BIG) == 1


def test_two_processes_download_once(index: FakeIndex, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from torchproof.index.indexes import Indexes\n"
        "from torchproof.index.wheel_store import WheelStore\n"
        "from torchproof.model.lock import LockedWheel, LayerName\n"
        f"wheel = {_locked(BIG)!r}".replace("<LayerName.TORCH: 'torch'>", "LayerName.TORCH")
        + "\n"
        f"store = WheelStore(Path({str(tmp_path / 'cache')!r}), "
        f"Indexes(pytorch='', urls={index.urls!r}))\n"
        "print(store.fetch(wheel))\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert len({process.communicate(timeout=60)[0] for process in started}) == 1
    assert [process.returncode for process in started] == [0, 0]
    assert _downloads(index, BIG) == 1


def test_a_wheelhouse_file_is_used_where_it_lies(tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / BIG.filename).write_bytes(BIG.data)
    store = WheelStore(tmp_path / "cache", Indexes(pytorch="", wheelhouses=(house,)))
    wheel = _locked(BIG, "wheelhouse")
    assert store.fetch(wheel) == house / BIG.filename
    assert store.url(wheel).startswith("file://")
    (house / BIG.filename).unlink()
    with pytest.raises(CellError, match="wheelhouse"):
        store.fetch(wheel, cell="c")


def test_fetching_many_asks_each_index_once(store: WheelStore, index: FakeIndex) -> None:
    paths = store.fetch_all([_locked(BIG), _locked(LOCAL, "pytorch/cu118")])
    assert {path.name for path in paths.values()} == {BIG.filename, LOCAL.filename}
    assert index.requests.count("GET /whl/cu118/torch/") == 1
