"""The default matrix against an index that answers: true states, locks, faults."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakeindex import FakeIndex, Fault, make_torch, published_wheels
from torchproof.commands.inputs import load_inputs
from torchproof.errors import CellError, HostError, IndexUnreachableError, IntegrityError
from torchproof.index.wheel_store import WheelStore
from torchproof.matrix.expand import load_matrix
from torchproof.model.lock import Lock
from torchproof.model.results import State
from torchproof.resolve.relock import Locked, lock_cells
from torchproof.resolve.resolver import Resolver
from torchproof.resolve.survey import SurveyedCell, indexes_of
from torchproof.upstream.facts import Build, load_facts

FACTS = load_facts()
CUDAS = ["cu118", "cu121", "cu126", "cu128", "cu130"]
PUBLISHED = {
    "2.7.1-cu118-py311",
    "2.7.1-cu126-py311",
    "2.7.1-cu128-py311",
    "2.9.1-cu126-py311",
    "2.9.1-cu128-py311",
    "2.9.1-cu130-py311",
}


@dataclass
class Bench:
    """One matrix in a folder of its own, against one index."""

    folder: Path
    index: FakeIndex

    def write(self, **more: Any) -> None:
        content = {"torch": ["2.7", "2.9"], "cuda": CUDAS, "indexes": self.index.urls} | more
        (self.folder / "matrix.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")

    def survey(self) -> dict[str, SurveyedCell]:
        inputs = load_inputs(self.folder / "matrix.yaml")
        return {item.id: item for item in inputs.survey()}

    def states(self) -> dict[str, str]:
        return {
            name: str(item.verdict.state) if item.verdict else "planned"
            for name, item in self.survey().items()
        }

    def store(self) -> WheelStore:
        matrix = load_matrix(self.folder / "matrix.yaml")
        return WheelStore(self.folder / "cache", indexes_of(matrix, FACTS))

    def lock(self, *, upgrade: bool = False) -> dict[str, Locked]:
        matrix = load_matrix(self.folder / "matrix.yaml")
        resolver = Resolver(facts=FACTS, indexes=indexes_of(matrix, FACTS), store=self.store())
        results = lock_cells(
            self.survey().values(), resolver, images=self.folder / "images", upgrade=upgrade
        )
        return {locked.cell: locked for locked in results}

    def locked(self, cell: str) -> Lock:
        locked = self.lock()[cell]
        assert locked.lock is not None, locked.error
        return locked.lock


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    with FakeIndex(published_wheels(FACTS)) as index:
        made = Bench(folder=tmp_path, index=index)
        made.write()
        yield made


def _filename(torch: str, cuda: str) -> str:
    return f"torch-{torch}+{cuda}-cp311-cp311-manylinux_2_28_x86_64.whl"


def test_six_cells_are_published_and_four_never_were(bench: Bench) -> None:
    states = bench.states()
    assert len(states) == 10
    assert {name for name, state in states.items() if state == "planned"} == PUBLISHED
    assert set(states.values()) == {"planned", "unavailable"}


def test_every_published_cell_locks_with_the_pins_of_its_build(bench: Bench) -> None:
    results = bench.lock()
    assert set(results) == PUBLISHED
    for name, locked in results.items():
        assert locked.lock is not None, locked.error
        torch, cuda, _ = name.split("-")
        build = FACTS.releases[torch].builds[cuda]
        lock = locked.lock
        assert (lock.cudnn, lock.nccl, lock.triton) == (build.cudnn, build.nccl, build.triton)
        assert lock.archs == build.archs


def test_torch_comes_from_the_index_of_its_cuda_and_the_default_build_from_pypi(
    bench: Bench,
) -> None:
    homes = {
        name: next(wheel.index for wheel in locked.lock.wheels if wheel.name == "torch")
        for name, locked in bench.lock().items()
        if locked.lock
    }
    assert homes["2.7.1-cu126-py311"] == homes["2.9.1-cu128-py311"] == "pypi"
    assert homes["2.7.1-cu118-py311"] == "pytorch/cu118"
    assert homes["2.9.1-cu130-py311"] == "pytorch/cu130"


def test_every_wheel_of_every_lock_can_be_fetched(bench: Bench) -> None:
    store = bench.store()
    for locked in bench.lock().values():
        assert locked.lock is not None
        files = store.fetch_all(locked.lock.wheels, cell=locked.cell)
        assert len(files) == len(locked.lock.wheels)


def test_an_override_replaces_the_pin_and_shares_all_other_wheels(bench: Bench) -> None:
    bench.write(cells=[{"torch": "2.9", "cuda": "cu128", "nccl": "2.30.7"}])
    results = bench.lock()
    plain, other = (
        results[name].lock for name in ("2.9.1-cu128-py311", "2.9.1-cu128-py311-nccl2.30.7")
    )
    assert plain is not None
    assert other is not None
    assert {wheel.name for wheel in set(plain.wheels) ^ set(other.wheels)} == {"nvidia-nccl-cu12"}
    (override,) = other.overrides
    assert (override.pinned, override.chosen) == ("2.27.5", "2.30.7")


def test_an_override_that_no_index_has_fails_its_cell_only(bench: Bench) -> None:
    bench.write(cells=[{"torch": "2.9", "cuda": "cu128", "nccl": "9.9.9"}])
    results = bench.lock()
    broken = results.pop("2.9.1-cu128-py311-nccl9.9.9")
    assert isinstance(broken.error, CellError)
    assert "9.9.9" in str(broken.error)
    assert all(locked.lock for locked in results.values())


def test_extras_get_their_own_layer(bench: Bench) -> None:
    bench.write(torch="2.9", cuda="cu128", options={"extras": ["numpy"]})
    lock = bench.locked("2.9.1-cu128-py311")
    assert [wheel.name for wheel in lock.wheels if wheel.layer == "extras"] == ["numpy"]


def test_the_python_of_the_resolving_machine_does_not_matter(bench: Bench) -> None:
    python = "3.12" if sys.version_info[:2] == (3, 11) else "3.11"
    bench.index.shelves = published_wheels(FACTS, python=python)
    base = {"image": f"registry.example/base@sha256:{'0' * 64}"}
    bench.write(torch="2.9", cuda="cu126", python=python, base=base)
    tag = "cp" + python.replace(".", "")
    lock = bench.locked(f"2.9.1-cu126-{tag.replace('cp', 'py')}")
    tags = {wheel.name: wheel.filename.split("-")[2] for wheel in lock.wheels}
    assert tags["torch"] == tags["triton"] == tag


def test_a_hash_that_the_index_does_not_tell_is_computed_from_the_file(bench: Bench) -> None:
    name = _filename("2.9.1", "cu126")
    bench.index.faults[name] = Fault.HASH_ABSENT
    lock = bench.locked("2.9.1-cu126-py311")
    torch = next(wheel for wheel in lock.wheels if wheel.name == "torch")
    made = bench.index.wheel(name)
    assert made is not None
    assert (torch.sha256, torch.size) == (made.sha256, len(made.data))


def test_a_wrong_hash_stops_the_cell_by_name(bench: Bench) -> None:
    name = _filename("2.9.1", "cu130")
    bench.index.faults[name] = Fault.HASH_WRONG
    lock = bench.locked("2.9.1-cu130-py311")
    made = bench.index.wheel(name)
    assert made is not None
    told = next(wheel.sha256 for wheel in lock.wheels if wheel.name == "torch")
    with pytest.raises(IntegrityError) as caught:
        bench.store().fetch_all(lock.wheels, cell=lock.cell)
    for part in ("2.9.1-cu130-py311", name, made.sha256, told):
        assert part in str(caught.value)


def test_a_file_without_metadata_of_its_own_still_locks(bench: Bench) -> None:
    bench.index.metadata = False
    assert bench.locked("2.7.1-cu118-py311").nccl == "2.21.5"


def test_a_json_index_without_sizes_locks_alike(bench: Bench) -> None:
    html = bench.locked("2.9.1-cu128-py311")
    bench.index.json, bench.index.sizes = True, False
    results = bench.lock(upgrade=True)
    assert results["2.9.1-cu128-py311"].lock == html


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.FORBIDDEN, Fault.GARBAGE])
def test_an_index_that_gives_no_page_blocks_its_cells_only(bench: Bench, fault: Fault) -> None:
    bench.index.faults["/whl/cu118/torch/"] = fault
    states = bench.states()
    assert states["2.7.1-cu118-py311"] == "blocked"
    assert states["2.9.1-cu118-py311"] == "unavailable"
    assert sum(state == "planned" for state in states.values()) == 5


def test_an_index_that_stalls_blocks_its_cells_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchproof.resolve.live_index.TIMEOUT", 1.0)
    bench.index.faults["/whl/cu118/torch/"] = Fault.STALL
    verdict = bench.survey()["2.7.1-cu118-py311"].verdict
    assert verdict is not None
    assert verdict.state == State.BLOCKED
    assert "did not answer in time" in verdict.reason


def test_an_index_that_is_gone_blocks_with_the_true_reason(bench: Bench) -> None:
    bench.write(indexes=bench.index.urls | {"pytorch": "http://127.0.0.1:9/whl"})
    found = bench.survey()
    verdict = found["2.9.1-cu130-py311"].verdict
    assert verdict is not None
    assert verdict.state == State.BLOCKED
    assert "127.0.0.1:9" in verdict.reason
    assert found["2.9.1-cu128-py311"].verdict is None


def test_the_default_index_gone_blocks_even_what_it_alone_has(bench: Bench) -> None:
    bench.write(indexes={"pypi": "http://127.0.0.1:9/simple", "pytorch": "http://127.0.0.1:9/whl"})
    states = bench.states()
    assert states["2.9.1-cu128-py311"] == "blocked"
    assert states["2.9.1-cu118-py311"] == "unavailable"


def test_an_index_that_dies_while_locking_blocks_and_the_others_go_on(bench: Bench) -> None:
    surveyed = bench.survey()
    for page in ("/whl/cu118/torch/", _filename("2.7.1", "cu118")):
        bench.index.faults[page] = Fault.UNAVAILABLE
    matrix = load_matrix(bench.folder / "matrix.yaml")
    resolver = Resolver(facts=FACTS, indexes=indexes_of(matrix, FACTS), store=bench.store())
    results = lock_cells(surveyed.values(), resolver, images=bench.folder / "images")
    errors = {locked.cell: locked.error for locked in results if locked.error}
    assert set(errors) == {"2.7.1-cu118-py311"}
    assert isinstance(errors["2.7.1-cu118-py311"], IndexUnreachableError)


def test_a_live_index_overrules_the_data_and_the_difference_is_told(bench: Bench) -> None:
    release = FACTS.releases["2.9.1"]
    build = release.builds["cu126"]
    shelves = dict(bench.index.shelves)
    shelves["pytorch/cu121"] = [make_torch(release, build, local="+cu121")]
    shelves["pytorch/cu118"] = []
    bench.index.shelves = shelves
    found = bench.survey()
    assert found["2.9.1-cu121-py311"].verdict is None
    assert "though the data does not list it" in found["2.9.1-cu121-py311"].availability.note
    gone = found["2.7.1-cu118-py311"].verdict
    assert gone is not None
    assert gone.state == State.UNAVAILABLE
    assert "though the data says" in gone.reason


def test_a_newer_patch_on_the_index_is_the_newest_patch(bench: Bench) -> None:
    release = FACTS.releases["2.9.1"]
    newer = make_torch(
        type(release)(
            version="2.9.2",
            default=release.default,
            python=release.python,
            python_arm64=release.python_arm64,
            builds=release.builds,
        ),
        release.builds["cu128"],
    )
    bench.index.shelves = dict(bench.index.shelves) | {
        "pypi": [*bench.index.shelves["pypi"], newer]
    }
    bench.write(torch="2.9", cuda="cu128")
    found = bench.survey()
    assert list(found) == ["2.9.2-cu128-py311"]
    assert "though the data does not list it" in found["2.9.2-cu128-py311"].availability.note
    assert bench.locked("2.9.2-cu128-py311").torch == "2.9.2"


def test_an_index_that_serves_another_cuda_fails_the_cell(bench: Bench) -> None:
    release = FACTS.releases["2.7.1"]
    wrong = make_torch(release, release.builds["cu128"], local="+cu118")
    bench.index.shelves = dict(bench.index.shelves) | {"pytorch/cu118": [wrong]}
    error = bench.lock()["2.7.1-cu118-py311"].error
    assert isinstance(error, CellError)
    assert "not cu118" in str(error)


def test_a_wheelhouse_makes_a_cell_that_was_never_published(bench: Bench) -> None:
    own = _own_torch(bench, "cu121")
    bench.write(torch=[], cuda=[], cells=[{"torch": "2.9", "cuda": "cu121", "wheelhouse": "own"}])
    lock = bench.locked("2.9.1-cu121-py311")
    torch = next(wheel for wheel in lock.wheels if wheel.name == "torch")
    assert (torch.index, torch.filename) == ("wheelhouse", own.name)
    assert bench.store().fetch(torch) == own
    assert bench.lock()["2.9.1-cu121-py311"].why == ""


def _own_torch(bench: Bench, cuda: str) -> Path:
    """Lay a source build of one's own, with no nvidia wheels, into the folder `own`."""
    plain = Build(cuda=cuda, platforms=(), confirmed=True, sources=(), triton="3.5.1")
    wheel = make_torch(FACTS.releases["2.9.1"], plain, local=f"+{cuda}")
    file = bench.folder / "own" / wheel.filename
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(wheel.data)
    return file


def test_a_wheelhouse_without_the_wheel_leaves_the_cell_unavailable(bench: Bench) -> None:
    bench.write(torch=[], cuda=[], cells=[{"torch": "2.9", "cuda": "cu121", "wheelhouse": "none"}])
    verdict = bench.survey()["2.9.1-cu121-py311"].verdict
    assert verdict is not None
    assert verdict.state == State.UNAVAILABLE


def test_a_wheelhouse_for_all_cells_serves_its_own_cell_and_no_other(bench: Bench) -> None:
    _own_torch(bench, "cu130")
    bench.write(torch="2.9", cuda=["cu126", "cu128", "cu130"], wheelhouse="own")
    homes = {
        name: next(wheel.index for wheel in locked.lock.wheels if wheel.name == "torch")
        for name, locked in bench.lock().items()
        if locked.lock
    }
    assert homes == {
        "2.9.1-cu126-py311": "pytorch/cu126",
        "2.9.1-cu128-py311": "pypi",
        "2.9.1-cu130-py311": "wheelhouse",
    }


def test_a_wheelhouse_that_is_not_there_is_named(bench: Bench) -> None:
    bench.write(torch="2.9", cuda=["cu121", "cu128"], wheelhouse="nowhere")
    verdict = bench.survey()["2.9.1-cu121-py311"].verdict
    assert verdict is not None
    assert "nowhere is not there" in verdict.reason
    assert bench.locked("2.9.1-cu128-py311")


def test_a_broken_wheel_in_a_wheelhouse_fails_its_cell(bench: Bench) -> None:
    own = _own_torch(bench, "cu121")
    own.write_bytes(own.read_bytes()[:300])
    bench.write(torch="2.9", cuda=["cu121", "cu128"], wheelhouse="own")
    results = bench.lock()
    assert isinstance(results["2.9.1-cu121-py311"].error, CellError)
    assert own.name in str(results["2.9.1-cu121-py311"].error)
    assert results["2.9.1-cu128-py311"].lock


def test_a_mirror_that_merges_indexes_gives_the_plain_wheel(bench: Bench) -> None:
    shelves = bench.index.shelves
    merged = [*shelves["pypi"], *shelves["pytorch/cu126"], *shelves["pytorch/cu130"]]
    bench.index.shelves = dict(shelves) | {"pypi": merged}
    lock = bench.locked("2.9.1-cu128-py311")
    torch = next(wheel for wheel in lock.wheels if wheel.name == "torch")
    assert (torch.version, torch.index) == ("2.9.1", "pypi")


def test_a_wheelhouse_file_that_changed_is_found_out(bench: Bench) -> None:
    own = _own_torch(bench, "cu126")
    bench.write(torch="2.9", cuda="cu126", wheelhouse="own")
    lock = bench.locked("2.9.1-cu126-py311")
    own.write_bytes(own.read_bytes() + b"x")
    with pytest.raises(IntegrityError, match=r"2\.9\.1-cu126-py311"):
        bench.store().fetch_all(lock.wheels, cell=lock.cell)
    assert "another torch" in bench.lock()["2.9.1-cu126-py311"].why


def test_a_lock_that_still_holds_is_kept_and_upgrade_makes_it_anew(bench: Bench) -> None:
    first = bench.locked("2.9.1-cu128-py311")
    kept = bench.lock()["2.9.1-cu128-py311"]
    assert kept.why == ""
    assert kept.lock == first
    anew = bench.lock(upgrade=True)["2.9.1-cu128-py311"]
    assert anew.why
    assert anew.lock == first


def test_an_index_behind_a_login_works_and_the_login_stays_out_of_the_lock(bench: Bench) -> None:
    bench.index.login = "user:hunter2"
    secret = bench.index.url.replace("http://", "http://user:hunter2@")
    bench.write(
        torch="2.7",
        cuda="cu118",
        indexes={"pypi": f"{secret}/simple", "pytorch": f"{secret}/whl"},
    )
    lock = bench.locked("2.7.1-cu118-py311")
    assert len(bench.store().fetch_all(lock.wheels)) == len(lock.wheels)
    text = (bench.folder / "images" / "2.7.1-cu118-py311" / "lock.yaml").read_text()
    assert "hunter2" not in text
    assert "127.0.0.1" not in text


def test_an_index_that_wants_a_login_blocks(bench: Bench) -> None:
    bench.index.login = "user:hunter2"
    verdict = bench.survey()["2.9.1-cu128-py311"].verdict
    assert verdict is not None
    assert verdict.state == State.BLOCKED
    assert "401" in verdict.reason


def test_credentials_do_not_stand_in_a_reason(bench: Bench) -> None:
    bench.write(
        indexes={
            "pypi": "http://me:hunter2@127.0.0.1:9/simple",
            "pytorch": "http://me:hunter2@127.0.0.1:9/whl",
        }
    )
    reasons = [item.verdict.reason for item in bench.survey().values() if item.verdict]
    assert any("127.0.0.1:9" in reason for reason in reasons)
    assert not any("hunter2" in reason for reason in reasons)


def test_host_faults_are_no_faults_of_the_cell(bench: Bench) -> None:
    bench.index.faults["*"] = Fault.UNAVAILABLE
    for locked in bench.lock().values():
        assert isinstance(locked.error, HostError)
