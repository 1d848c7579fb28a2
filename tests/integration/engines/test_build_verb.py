"""The verbs generate and build as a user runs them, in a folder of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.fakeindex import FakeIndex, Fault, published_wheels
from tests.integration.fixtures_engine import Bench, nvidia, small_lock, small_wheels, wait_for
from tests.integration.needs import needs
from tests.integration.registries import running_registry
from torchproof.engines.build_cells import build_cells
from torchproof.engines.docker import DockerEngine
from torchproof.index.indexes import cache_dir
from torchproof.model.lock import LayerName
from torchproof.registry import Registry
from torchproof.upstream.facts import load_facts

BUILD = Path(__file__).parents[3] / "build.py"
CELL = "2.9.1-cu128-py311"
OTHER = "2.7.1-cu126-py311"

pytestmark = needs("network")


class Shop:
    """A folder with a matrix, against an index that answers."""

    def __init__(self, folder: Path, index: FakeIndex) -> None:
        self.folder, self.index = folder, index
        self.env = os.environ | {
            "UV_CACHE_DIR": str(folder / "uv"),
            "TORCHPROOF_CACHE": str(folder / "cache"),
        }

    def write(self, **more: object) -> None:
        content = {
            "torch": ["2.7", "2.9"],
            "cuda": ["cu126", "cu128"],
            "options": {"compile": False},
            "indexes": self.index.urls,
        }
        (self.folder / "matrix.yaml").write_text(yaml.safe_dump(content | more))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(BUILD), *arguments],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=300)
        assert "Traceback" not in output
        return process.returncode, output

    def torch(self) -> str:
        """The file name of the torch that CELL takes."""
        return "torch-2.9.1-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with FakeIndex(published_wheels(load_facts())) as index:
        made = Shop(tmp_path, index)
        made.write()
        yield made


def test_generate_writes_and_check_shows_drift_and_touches_nothing(shop: Shop) -> None:
    assert shop.run("lock")[0] == 0
    assert shop.run("generate", "--check")[0] == 1
    assert not (shop.folder / "images" / CELL / "Dockerfile").exists()
    assert shop.run("generate")[0] == 0
    assert shop.run("generate", "--check")[0] == 0
    file = shop.folder / "images" / CELL / "Dockerfile"
    file.write_text(file.read_text().replace("--no-deps", ""))
    (file.parent / "extras.txt").write_text("left over\n")
    before = file.read_text()
    code, output = shop.run("generate", "--check")
    assert code == 1
    assert "+    --compile-bytecode --no-deps" in output
    assert "-left over" in output
    assert file.read_text() == before


def test_a_folder_that_no_cell_has_is_noticed(shop: Shop) -> None:
    shop.run("lock")
    shop.run("generate")
    shop.write(torch="2.7", cuda="cu126")
    code, output = shop.run("generate", "--check")
    assert f"images/{CELL}: this matrix has no such cell" in output
    assert code == 0


def test_only_without_a_match_is_an_error(shop: Shop) -> None:
    for verb in ("generate", "build"):
        code, output = shop.run(verb, "--only", "3.9*")
        assert code == 2
        assert "3.9*" in output


def test_cells_without_a_lock_are_named_each_with_its_reason(shop: Shop) -> None:
    shop.run("lock", "--only", CELL)
    shop.write(cuda=["cu121", "cu126", "cu128"])
    code, output = shop.run("build", "--engine", "venv")
    assert code == 0
    assert f"{OTHER}: has no lock; run `python build.py lock`" in output
    assert "2.9.1-cu121-py311: unavailable" in output
    assert f"{CELL}: environment (no image)" in output


def test_an_unknown_engine_is_the_users_error(shop: Shop) -> None:
    shop.run("lock")
    code, output = shop.run("build", "--engine", "dcoker")
    assert code == 2
    assert "did you mean `docker`" in output


def test_build_makes_every_locked_cell_and_a_second_run_makes_none(shop: Shop) -> None:
    shop.run("lock")
    code, output = shop.run("build", "--engine", "venv")
    assert code == 0
    assert output.count("built in") == 4
    assert "environment (no image)" in output
    code, output = shop.run("build", "--engine", "venv")
    assert code == 0
    assert output.count("already built") == 4


@needs("registry")
@needs("bootstrap")
def test_assembled_images_go_straight_into_a_registry(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(exist_ok=True)
    (tmp_path / "cache" / "bases").symlink_to(cache_dir() / "bases")
    shop.run("lock")
    with running_registry(tmp_path / "registry") as running:
        to = (
            "build",
            "--builder",
            "assemble",
            "--to",
            f"{running.host}/team/torch",
            "--only",
            CELL,
        )
        code, output = shop.run(*to)
        assert code == 0, output
        with Registry(running.host) as registry:
            digest = registry.manifest_digest("team/torch", CELL)
        assert digest and f"image {running.host}/team/torch:{CELL}: built in" in output
        assert digest[:19] in output
        code, output = shop.run(*to)
        assert code == 0
        assert "already built" in output
    assert not (shop.folder / "build").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--to", "somewhere"), "--to needs --builder assemble"),
        (("--builder", "assemble", "--to", "localhost:1/team/torch:tag"), "names one image"),
        (("--builder", "assemble", "--to", "localhost:1/Team/torch"), "invalid repository name"),
        (("--builder", "assemble", "--engine", "dokcer"), "did you mean `docker`"),
    ],
)
def test_a_place_that_cannot_be_is_refused(
    shop: Shop, arguments: tuple[str, ...], said: str
) -> None:
    code, output = shop.run("build", *arguments)
    assert (code, said in output) == (2, True), output


def test_one_cell_with_a_broken_wheel_fails_and_the_others_are_built(shop: Shop) -> None:
    shop.run("lock")
    shop.index.faults[shop.torch()] = Fault.CUT
    code, output = shop.run("build", "--engine", "venv")
    assert code == 1
    assert output.count("built in") == 3
    assert f"{CELL}: failed:" in output
    assert shop.torch() in output
    assert "log: " in output


def test_an_index_that_is_down_blocks_the_cells(shop: Shop) -> None:
    shop.run("lock")
    shop.index.faults["*"] = Fault.UNAVAILABLE
    code, output = shop.run("build", "--engine", "venv", "--only", CELL)
    assert code == 3
    assert f"{CELL}: blocked:" in output


def test_sigterm_during_a_build_stops_cleanly_and_the_next_run_goes_on(shop: Shop) -> None:
    assert shop.run("lock")[0] == 0
    assert shop.run("build", "--engine", "venv", "--only", OTHER)[0] == 0
    shop.index.faults[shop.torch()] = Fault.STALL
    asked = len(shop.index.requests)
    process = shop.start("build", "--engine", "venv", "--only", "*-cu12[68]-*")
    wait_for(lambda: any(f"/{shop.torch()}" in line for line in shop.index.requests[asked:]), 200)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "Traceback" not in output
    assert "interrupted" in output
    shop.index.faults.clear()
    code, output = shop.run("build", "--engine", "venv", "--only", "*-cu12[68]-*")
    assert code == 0
    assert f"{OTHER}: environment" in output
    assert "already built" in output
    assert "built in" in output


@needs("docker")
@needs("bootstrap")
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_during_a_docker_build_ends_its_client(
    docker_engine: DockerEngine, bench: Bench, stop: signal.Signals
) -> None:
    name = "nvidia-cublas-cu12"
    wheels = small_wheels()
    wheels[name] = (nvidia(name, "12.8.4.1", f"cublas/lib/{bench.tag}.so"), LayerName.CUDA)
    bench.serve(*(wheel for wheel, _ in wheels.values()))
    lock = small_lock(bench.cell(), wheels)
    bench.index.faults[lock.wheels[0].filename] = Fault.STALL
    threading.Timer(6, os.kill, (os.getpid(), stop)).start()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            build_cells(docker_engine, [lock], reports=bench.folder, images=bench.folder)
    finally:
        signal.signal(signal.SIGTERM, before)
    bench.index.faults.clear()
    (result,) = build_cells(docker_engine, [lock], reports=bench.folder, images=bench.folder)
    assert result.built is not None, result.error
