"""`matrix` as a user runs it: in its own process and folder, up to the exit code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import jsonschema
import pytest
import yaml

from tests.conftest import LARGE
from tests.fakeindex import FakeIndex, Fault, make_torch, published_wheels
from tests.integration.fixtures_engine import image_names
from tests.integration.index.test_cells import CUDAS, PUBLISHED
from tests.integration.needs import needs
from torchproof.index.indexes import cache_dir
from torchproof.report.models import SCHEMA_FILE
from torchproof.upstream.facts import Build, load_facts

pytestmark = needs("network")  # the images' own installer comes from the package index

ROOT = Path(__file__).parents[3]
FACTS = load_facts()
NO_TORCH = ["rendezvous", "signals"]
"""Probes that a synthetic torch can pass."""


@dataclass
class Desk:
    """A user's folder with a matrix, and an index that answers."""

    folder: Path
    index: FakeIndex

    def write(self, **more: Any) -> None:
        content = {
            "torch": ["2.7", "2.9"],
            "cuda": CUDAS,
            "indexes": self.index.urls,
            "options": {"compile": False},
            "probes": {"required": NO_TORCH, "rest": False},
        }
        text = yaml.safe_dump(content | more)
        (self.folder / "matrix.yaml").write_text(text, encoding="utf-8")

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "build.py"), *arguments],
            cwd=self.folder,
            env=os.environ | {"UV_CACHE_DIR": str(self.folder / "uv")} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **env: str) -> tuple[int, str]:
        process = self.start(*arguments, **env)
        out, err = process.communicate(timeout=600)
        assert "Traceback" not in out + err, err
        return process.returncode, out + err

    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "reports/report.json").read_text())  # type: ignore[no-any-return]

    def cells(self) -> dict[str, dict[str, Any]]:
        return {cell["id"]: cell for cell in self.report()["cells"]}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "bases").symlink_to(cache_dir() / "bases")
    with FakeIndex(published_wheels(FACTS)) as index:
        made = Desk(folder=tmp_path, index=index)
        made.write()
        yield made


def venv(desk: Desk, *arguments: str) -> tuple[int, str]:
    cache = str(desk.folder / "cache")
    return desk.run("matrix", "--engine", "venv", *arguments, TORCHPROOF_CACHE=cache)


def test_ten_cells_get_their_true_state_without_an_engine(desk: Desk) -> None:
    code, said = venv(desk)
    assert code == 0, said
    cells = desk.cells()
    assert len(cells) == 10
    for name, cell in cells.items():
        if name in PUBLISHED:
            assert cell["verdict"] == "unproven"
            assert "no image was built" in cell["reason"]
            assert cell["environment"] and not cell["image"]
        else:
            assert cell["verdict"] == "unavailable"
            assert cell["reason"] and cell["source"] and cell["nearest"]
    assert "no images were built" in said


def test_the_report_fits_its_schema_and_all_files_are_there(desk: Desk) -> None:
    venv(desk, "--only", "2.7.1-cu126")
    jsonschema.validate(desk.report(), json.loads(SCHEMA_FILE.read_text()))
    names = {path.name for path in (desk.folder / "reports").iterdir()}
    assert names >= {"index.html", "report.json", "report.md", "junit.xml", "metrics.prom"}


def test_a_wheelhouse_makes_an_unpublished_cell_possible(desk: Desk) -> None:
    house = desk.folder / "wheels"
    house.mkdir()
    plain = Build(cuda="cu121", platforms=(), confirmed=True, sources=(), triton="3.5.1")
    own = make_torch(FACTS.releases["2.9.1"], plain, local="+cu121")
    (house / own.filename).write_bytes(own.data)
    desk.write(cells=[{"torch": "2.9", "cuda": "cu121", "wheelhouse": "wheels"}], torch=[], cuda=[])
    code, said = venv(desk)
    cell = desk.cells()["2.9.1-cu121-py311"]
    assert code == 0, said
    assert cell["verdict"] == "unproven"
    assert any("wheelhouse" in note for note in cell["notes"])


def test_a_wrong_hash_fails_its_cell_by_name_and_the_others_go_on(desk: Desk) -> None:
    wrong = "torch-2.7.1+cu118-cp311-cp311-manylinux_2_28_x86_64.whl"
    desk.index.faults[wrong] = Fault.HASH_WRONG
    code, said = venv(desk, "--only", "2.7.1*")
    cells = desk.cells()
    assert code == 1
    assert cells["2.7.1-cu118-py311"]["verdict"] == "failed"
    assert "torch-2.7.1" in cells["2.7.1-cu118-py311"]["reason"]
    assert cells["2.7.1-cu126-py311"]["verdict"] == "unproven"
    assert "2.7.1-cu118-py311" in said


def test_a_lock_with_another_hash_fails_at_the_build_and_names_the_wheel(desk: Desk) -> None:
    desk.run("lock", "--only", "2.7.1-cu126")
    path = desk.folder / "images/2.7.1-cu126-py311/lock.yaml"
    data = yaml.safe_load(path.read_text())
    torch = next(wheel for wheel in data["wheels"] if wheel["name"] == "torch")
    torch["sha256"] = "0" * 64
    path.write_text(yaml.safe_dump(data))
    code, said = venv(desk, "--only", "2.7.1-cu126")
    assert code == 1
    assert desk.cells()["2.7.1-cu126-py311"]["verdict"] == "failed"
    assert "torch" in desk.cells()["2.7.1-cu126-py311"]["reason"]
    assert "2.7.1-cu126-py311" in said


def test_an_unreadable_lock_fails_its_cell_and_not_the_run(desk: Desk) -> None:
    path = desk.folder / "images/2.7.1-cu126-py311/lock.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("- no\n- lock\n")
    code, _ = venv(desk, "--only", "2.7.1*")
    assert code == 1
    assert desk.cells()["2.7.1-cu126-py311"]["verdict"] == "failed"
    assert "lock.yaml" in desk.cells()["2.7.1-cu126-py311"]["reason"]
    assert desk.cells()["2.7.1-cu128-py311"]["verdict"] == "unproven"


def test_an_index_that_does_not_answer_blocks_its_cells_only(desk: Desk) -> None:
    desk.write(indexes=desk.index.urls | {"pytorch/cu118": "http://127.0.0.1:9/whl/cu118"})
    code, _ = venv(desk, "--only", "2.7.1*")
    assert code == 0
    assert desk.cells()["2.7.1-cu118-py311"]["verdict"] == "blocked"
    assert "127.0.0.1:9" in desk.cells()["2.7.1-cu118-py311"]["reason"]
    assert desk.cells()["2.7.1-cu126-py311"]["verdict"] == "unproven"


def test_strict_turns_unproven_into_exit_code_4(desk: Desk) -> None:
    assert venv(desk, "--strict", "--only", "2.7.1-cu126")[0] == 4


def test_a_required_probe_that_fails_fails_the_cell(desk: Desk) -> None:
    desk.write(probes={"required": ["versions"], "rest": False})
    code, said = venv(desk, "--only", "2.7.1-cu126")
    assert code == 1
    assert "versions" in desk.cells()["2.7.1-cu126-py311"]["reason"]
    assert "failed" in said


def test_an_unknown_probe_in_the_matrix_is_wrong_input(desk: Desk) -> None:
    desk.write(probes={"required": ["versoins"]})
    code, said = venv(desk)
    assert code == 2
    assert "did you mean" in said and "versions" in said


def test_a_requested_engine_that_does_not_answer_ends_the_run_with_3(desk: Desk) -> None:
    code, said = desk.run("matrix", "--engine", "docker", DOCKER_HOST="tcp://127.0.0.1:9")
    assert code == 3
    assert "fix:" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_during_a_build_keeps_the_report_and_a_second_run_resumes(
    desk: Desk, number: signal.Signals
) -> None:
    cache = str(desk.folder / "cache")
    only = ("--only", "2.7.1-cu126")
    desk.run("lock", *only)
    name = "torch-2.7.1-cp311-cp311-manylinux_2_28_x86_64.whl"
    desk.index.faults[name] = Fault.STALL
    desk.index.requests.clear()
    process = desk.start("matrix", "--engine", "venv", *only, TORCHPROOF_CACHE=cache)
    assert process.stdout is not None
    assert any("building" in line for line in process.stdout)
    deadline = time.monotonic() + 60
    while not any(name in line for line in desk.index.requests) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err and "run again" in err
    assert desk.cells()["2.7.1-cu126-py311"]["verdict"] == "blocked"
    desk.index.faults.clear()
    code, said = venv(desk, *only)
    assert code == 0, said


@needs("docker")
@needs("bootstrap")
@pytest.mark.xdist_group(LARGE)  # its cells have the names of real ones
class TestWithEngine:
    """The same with a container engine."""

    @pytest.fixture(autouse=True)
    def _tags(self) -> Iterator[None]:
        """Give the cells' tags back to the images that had them."""
        client = docker.from_env(timeout=60)
        before = image_names(client)
        yield
        for name, image in image_names(client).items():
            if before.get(name) != image:
                client.images.remove(name, force=True)
                if name in before:
                    client.images.get(before[name]).tag(name)

    def test_all_six_published_cells_become_images_that_pass(self, desk: Desk) -> None:
        code, said = desk.run("matrix", "--engine", "docker")
        assert code == 0, said
        client = docker.from_env(timeout=60)
        cells = desk.cells()
        assert {name for name, cell in cells.items() if cell["image"]} == PUBLISHED
        for name in PUBLISHED:
            cell = cells[name]
            assert cell["verdict"] == "verified", cell["reason"]
            image = client.images.get(cell["image"]["ref"])
            assert image.id == cell["image"]["digest"] == cell["evidence"]["digest"]
            assert (desk.folder / "images" / name / "Dockerfile").exists()

    def test_a_second_run_builds_and_probes_nothing_again(self, desk: Desk) -> None:
        only = ("--only", "2.9.1-cu128", "--engine", "docker")
        desk.run("matrix", *only)
        first = desk.cells()["2.9.1-cu128-py311"]
        log = desk.folder / "reports/cells/2.9.1-cu128-py311/logs"
        shutil.rmtree(log)
        desk.run("matrix", *only)
        second = desk.cells()["2.9.1-cu128-py311"]
        assert second["build"]["reused"]
        assert second["image"]["digest"] == first["image"]["digest"]
        assert second["probes"] == first["probes"]
        assert not log.exists()


@needs("docker")
@needs("bootstrap")
@pytest.mark.real_torch
def test_a_real_torch_is_built_audited_and_probed_in_its_image(tmp_path: Path) -> None:
    shutil.copy(ROOT / "matrix.yaml", tmp_path)
    shutil.copytree(ROOT / "images", tmp_path / "images")
    desk = Desk(folder=tmp_path, index=FakeIndex({}))
    process = desk.start(
        "matrix", "--engine", "docker", "--only", "2.7.1-cu126", UV_CACHE_DIR=_uv_cache()
    )
    out, err = process.communicate(timeout=1200)
    assert process.returncode == 0, out + err
    cell = desk.cells()["2.7.1-cu126-py311"]
    image = docker.from_env(timeout=60).images.get(cell["image"]["ref"])
    assert image.id == cell["evidence"]["digest"]
    assert {finding["outcome"] for finding in cell["audit"]} <= {"pass", "note"}
    outcomes = {probe["name"]: probe["outcome"] for probe in cell["probes"]}
    passed = {"versions", "torchrun", "ddp_step_gloo", "allreduce_bandwidth_gloo"}
    assert {name: outcomes[name] for name in passed} == dict.fromkeys(passed, "pass")
    assert "fail" not in outcomes.values(), outcomes
    if not cell["evidence"]["host"]["gpus"]:
        assert cell["verdict"] == "unproven"
        assert "needs 2 GPUs: allreduce_bandwidth, ddp_step, nccl_init" in cell["reason"]


def _uv_cache() -> str:
    return os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv"))


@pytest.mark.real_torch
def test_an_incompatible_nccl_fails_before_the_build(tmp_path: Path) -> None:
    desk = Desk(folder=tmp_path, index=FakeIndex({}))
    cell = {"torch": "2.7.1", "cuda": "cu126", "nccl": "2.21.5"}
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump({"cells": [cell]}), encoding="utf-8")
    code, said = desk.run("matrix", "--engine", "venv", UV_CACHE_DIR=_uv_cache())
    found = desk.cells()["2.7.1-cu126-py311-nccl2.21.5"]
    assert code == 1, said
    assert found["verdict"] == "failed"
    assert found["evidence"]["subject"] == "lock"
    assert "ncclCommInitRankScalable" in found["reason"]
    assert not found["environment"] and not found["image"] and not found["probes"]
