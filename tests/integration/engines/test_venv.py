"""Small cells as virtual environments, from an index that answers, or does not."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakeindex import Fault
from tests.integration.fixtures_engine import Bench
from tests.integration.needs import needs
from torchproof.engines.build_cells import build_cells
from torchproof.engines.engine import RunSpec
from torchproof.errors import HostError, IndexUnreachableError, IntegrityError
from torchproof.model.results import SubjectKind

pytestmark = needs("network")


def test_an_environment_has_the_wheels_of_its_lock(bench: Bench) -> None:
    engine = bench.venv()
    built = bench.build(engine, bench.lock())
    assert built.subject is SubjectKind.ENVIRONMENT
    assert [layer.name for layer in built.layers] == ["cuda", "cudnn", "torch", "nccl"]
    script = "import sys, torch, json; print(json.dumps([sys.prefix, torch.__version__]))"
    done = engine.run(built, RunSpec(command=["python", "-c", script]))
    assert json.loads(done.stdout) == [built.ref, "2.9.1+cu128"]
    assert engine.run(built, RunSpec(command=["torchrun"])).stdout == "torchrun\n"


def test_a_second_build_is_found(bench: Bench) -> None:
    engine, lock = bench.venv(), bench.lock()
    built = bench.build(engine, lock)
    found = engine.find(lock)
    assert found is not None
    assert found.reused
    assert (found.digest, found.layers) == (built.digest, built.layers)


@pytest.mark.parametrize("harm", ["removed", "grown", "unfinished"])
def test_an_environment_that_is_not_whole_is_made_anew(bench: Bench, harm: str) -> None:
    engine, lock = bench.venv(), bench.lock()
    built = bench.build(engine, lock)
    library = next(Path(built.ref).rglob("libnccl.so.2"))
    match harm:
        case "removed":
            library.unlink()
        case "grown":
            text = library.read_text()
            library.unlink()  # the file is a hard link into uv's cache
            library.write_text(text + "more")
        case _:
            (Path(built.ref) / "torchproof.json").unlink()
    assert engine.find(lock) is None
    again = bench.build(engine, lock)
    assert (again.digest, again.reused) == (built.digest, False)


def test_the_users_variables_do_not_reach_a_command(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, "/nowhere")
    engine = bench.venv()
    built = bench.build(engine, bench.lock())
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    done = engine.run(built, RunSpec(command=["python", "-c", script], env={"MINE": "1"}))
    seen = json.loads(done.stdout)
    assert "/nowhere" not in seen.values()
    assert (seen["MINE"], seen["CUDA_VISIBLE_DEVICES"]) == ("1", "")
    assert not Path(seen["HOME"]).exists()


def test_a_mounted_path_is_the_path_on_this_machine(bench: Bench) -> None:
    (bench.folder / "probes").mkdir()
    (bench.folder / "probes" / "a.py").write_text("print('ran')\n")
    engine = bench.venv()
    built = bench.build(engine, bench.lock())
    spec = RunSpec(command=["python", "/probes/a.py"], mounts={bench.folder / "probes": "/probes"})
    assert engine.run(built, spec).stdout == "ran\n"


def test_a_wrong_hash_stops_the_cell_by_name(bench: Bench) -> None:
    lock = bench.lock()
    wrong = replace(lock.wheels[0], sha256="0" * 64)
    with pytest.raises(IntegrityError) as caught:
        bench.build(bench.venv(), replace(lock, wheels=(wrong, *lock.wheels[1:])))
    assert lock.cell in str(caught.value)
    assert wrong.filename in str(caught.value)


def test_a_truncated_wheel_stops_the_cell_by_name(bench: Bench) -> None:
    lock = bench.lock()
    bench.index.faults[lock.wheels[1].filename] = Fault.CUT
    with pytest.raises(IntegrityError) as caught:
        bench.build(bench.venv(), lock)
    assert lock.cell in str(caught.value)
    assert lock.wheels[1].filename in str(caught.value)


def test_an_index_that_does_not_answer_blocks_the_cell(bench: Bench) -> None:
    lock = bench.lock()
    bench.index.faults["/simple/torch/"] = Fault.UNAVAILABLE
    with pytest.raises(IndexUnreachableError, match=lock.cell):
        bench.build(bench.venv(), lock)


def test_a_python_that_the_machine_lacks_blocks_the_cell(bench: Bench) -> None:
    with pytest.raises(HostError, match=r"no Python 3\.99"):
        bench.build(bench.venv(), bench.lock(python="3.99"))


def test_a_cell_of_another_machine_is_blocked(bench: Bench) -> None:
    with pytest.raises(HostError, match="linux/arm64"):
        bench.build(bench.venv(), bench.lock(platform="linux/arm64"))


def test_one_failing_cell_does_not_stop_the_others(bench: Bench) -> None:
    good, bad = bench.lock(), bench.lock("-bad", python="3.99")
    results = build_cells(bench.venv(), [bad, good], reports=bench.folder, images=bench.folder)
    assert [result.built is not None for result in results] == [False, True]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_is_too_small_blocks_before_anything_is_downloaded(bench: Bench) -> None:
    import subprocess

    place = bench.folder / "envs"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)], check=True)
    try:
        lock = bench.lock()
        (result,) = build_cells(bench.venv(), [lock], reports=bench.folder, images=bench.folder)
        assert isinstance(result.error, HostError)
        assert "of disk" in str(result.error)
        assert not bench.index.requests
    finally:
        subprocess.run(["umount", str(place)], check=True)
        shutil.rmtree(place)
