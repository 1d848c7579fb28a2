"""plan and lock as a user runs them: what they print, what they write, how they end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakeindex import FakeIndex, Fault, published_wheels
from torchproof.cli import main
from torchproof.upstream.facts import load_facts

ROOT = Path(__file__).parents[3]
CUDAS = ["cu118", "cu121", "cu126", "cu128", "cu130"]
GONE = {"pypi": "http://127.0.0.1:9/simple", "pytorch": "http://127.0.0.1:9/whl"}


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    returncode: int
    stdout: str
    stderr: str


@dataclass
class Desk:
    """A user's folder and the index that their matrix names."""

    folder: Path
    index: FakeIndex
    capture: pytest.CaptureFixture[str]

    def write(self, **more: Any) -> None:
        content = {"torch": ["2.7", "2.9"], "cuda": CUDAS, "indexes": self.index.urls} | more
        (self.folder / "matrix.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")

    def run(self, *words: str) -> Ended:
        self.capture.readouterr()
        code = main(list(words))
        return Ended(code, *self.capture.readouterr())


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    folder = tmp_path / "desk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("TORCHPROOF_CACHE", str(tmp_path / "cache"))
    with FakeIndex(published_wheels(load_facts())) as index:
        made = Desk(folder, index, capsys)
        made.write()
        yield made


def test_plan_shows_the_ten_cells_and_touches_nothing(desk: Desk) -> None:
    done = desk.run("plan", "--json")
    cells = json.loads(done.stdout)["cells"]
    assert done.returncode == 0
    assert [cell["state"] for cell in cells].count("planned") == 6
    assert [cell["state"] for cell in cells].count("unavailable") == 4
    for cell in cells:
        assert {
            *("id", "torch", "cuda", "cudnn", "nccl", "python", "state", "reason", "source"),
            *("nearest", "layers", "bytes"),
        } <= cell.keys()
        if cell["state"] == "unavailable":
            assert cell["reason"]
            assert cell["source"]
            assert cell["nearest"]
    assert [file.name for file in desk.folder.iterdir()] == ["matrix.yaml"]


def test_plan_for_people_names_reason_and_nearest(desk: Desk) -> None:
    done = desk.run("plan", "--only", "2.9*cu118*")
    assert "CMake of 2.9 refuses CUDA below 12.0" in done.stdout
    assert "nearest: 2.7.1-cu118-py311, 2.9.1-cu126-py311" in done.stdout
    assert "2.7.1-cu126" not in done.stdout


def test_lock_then_plan_tells_layers_and_bytes(desk: Desk) -> None:
    assert desk.run("lock", "--only", "2.9.1-cu130").returncode == 0
    (cell,) = json.loads(desk.run("plan", "--json", "--only", "2.9.1-cu130").stdout)["cells"]
    names = [layer["name"] for layer in cell["layers"]]
    assert names == ["base", "python", "cuda", "cudnn", "torch", "nccl", "config"]
    assert cell["bytes"] == sum(layer["bytes"] for layer in cell["layers"]) > 0


def test_plan_says_that_a_lock_is_out_of_date(desk: Desk) -> None:
    desk.run("lock", "--only", "2.9.1-cu130")
    desk.write(options={"rdma": True})
    (cell,) = json.loads(desk.run("plan", "--json", "--only", "2.9.1-cu130").stdout)["cells"]
    assert "out of date" in cell["reason"]
    assert "locked (rdma was False, is True)" in desk.run("lock", "--only", "2.9.1-cu130").stdout


def test_a_lock_that_is_broken_fails_its_cell_and_upgrade_mends_it(desk: Desk) -> None:
    desk.run("lock", "--only", "2.9*")
    path = desk.folder / "images" / "2.9.1-cu130-py311" / "lock.yaml"
    path.write_text("cell: [", encoding="utf-8")
    done = desk.run("lock", "--only", "2.9*")
    assert done.returncode == 1
    assert "lock.yaml" in done.stdout
    assert done.stdout.count("lock kept") == 2
    assert desk.run("lock", "--only", "2.9.1-cu130", "--upgrade").returncode == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("torch: ['2.9']\ncuda: [cu127]\n", "did you mean `cu128`?"),
        ("torch: ['2.99']\ncuda: [cu128]\n", "there is no torch 2.99"),
        ("torch: ['2.9', '2.9.1']\ncuda: [cu128]\n", "is listed twice"),
        ("torch: ['2.9']\ncuda: [cu128]\nexclude: [{cuda: cu128}]\n", "`reason` is missing"),
        ("- a\n- b\n", "must be a mapping"),
        ("torch: [", "not YAML"),
        ("torch: ['2.9']\nCuda: [cu128]\n", "did you mean `cuda`?"),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "lock"])
def test_wrong_input_ends_with_2_and_names_the_line(
    desk: Desk, verb: str, text: str, says: str
) -> None:
    with_index = text + yaml.safe_dump({"indexes": desk.index.urls}) if text != "torch: [" else text
    (desk.folder / "matrix.yaml").write_text(
        text if text.startswith("-") else with_index, encoding="utf-8"
    )
    done = desk.run(verb)
    assert done.returncode == 2
    assert "matrix.yaml:" in done.stderr
    assert says in done.stderr


def test_a_matrix_that_is_not_there_ends_with_2(desk: Desk) -> None:
    done = desk.run("plan", "--matrix", "elsewhere.yaml")
    assert done.returncode == 2
    assert "elsewhere.yaml" in done.stderr


@pytest.mark.parametrize("verb", ["plan", "lock"])
def test_only_without_match_ends_with_2(desk: Desk, verb: str) -> None:
    done = desk.run(verb, "--only", "2.9.1-cu127*")
    assert done.returncode == 2
    assert "did you mean `2.9.1-cu12" in done.stderr


def test_a_cell_that_cannot_be_resolved_ends_with_1_and_the_others_are_locked(desk: Desk) -> None:
    desk.write(cells=[{"torch": "2.9", "cuda": "cu128", "nccl": "9.9.9"}])
    done = desk.run("lock")
    assert done.returncode == 1
    assert "2.9.1-cu128-py311-nccl9.9.9: failed" in done.stdout
    assert len(list(desk.folder.glob("images/*/lock.yaml"))) == 6


def test_one_index_gone_ends_with_0_as_long_as_others_answer(desk: Desk) -> None:
    desk.write(indexes=desk.index.urls | {"pytorch": GONE["pytorch"]})
    done = desk.run("lock")
    assert done.returncode == 0
    assert done.stdout.count(": blocked: ") == 4
    assert len(list(desk.folder.glob("images/*/lock.yaml"))) == 2


def test_every_index_gone_ends_with_3(desk: Desk) -> None:
    desk.write(indexes=GONE)
    done = desk.run("lock", "--only", "*cu128*")
    assert done.returncode == 3
    assert "does not answer" in done.stdout


def test_an_index_that_times_out_blocks_within_seconds(desk: Desk) -> None:
    desk.index.faults["/whl/cu118/torch/"] = Fault.STALL
    begun = time.monotonic()
    done = desk.run("plan", "--json", "--only", "2.7.1-cu118")
    (cell,) = json.loads(done.stdout)["cells"]
    assert cell["state"] == "blocked"
    assert "in time" in cell["reason"]
    assert time.monotonic() - begun < 30


def test_an_interrupt_ends_with_130_and_in_words(desk: Desk) -> None:
    desk.index.faults["/whl/cu118/torch/"] = Fault.STALL
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "build.py"), "lock"],
        cwd=desk.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not any("/whl/cu118" in request for request in desk.index.requests):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in stderr
    assert "Traceback" not in stderr


def test_find_links_of_the_environment_do_not_reach_a_lock(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.fakeindex import make_wheel

    odd = make_wheel("filelock", "99.0")
    (tmp_path / odd.filename).write_bytes(odd.data)
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("UV_RESOLUTION", "lowest")
    monkeypatch.setenv("UV_PRERELEASE", "allow")
    desk.run("lock", "--only", "2.9.1-cu128")
    text = (desk.folder / "images" / "2.9.1-cu128-py311" / "lock.yaml").read_text()
    assert "99.0" not in text
    assert "filelock-3.20.0" in text
