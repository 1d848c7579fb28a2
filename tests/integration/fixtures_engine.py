"""Small cells for tests of engines: real bases, real builds, wheels of a few kilobytes.

`small_lock` makes a lock of stub wheels, `Bench` serves them and builds with a real engine. A base
is made once by mmdebstrap and kept in torchproof's cache.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import docker
import pytest

from tests.fakeindex import FakeIndex, Wheel, make_wheel
from torchproof.engines.docker import REPOSITORY, DockerEngine
from torchproof.engines.engine import Engine
from torchproof.engines.venv import VenvEngine
from torchproof.index.indexes import Indexes, cache_dir
from torchproof.model.lock import LayerName, Lock, LockedBase, LockedWheel
from torchproof.model.lock_file import lock_path, read_lock
from torchproof.model.results import Built
from torchproof.upstream.facts import load_facts

LARGE_IMAGE = 3_000_000_000
"""Bytes that no image of a test's own wheels has."""
BASE = LockedBase(
    bootstrap="debian/bookworm", packages=("ca-certificates", "python3", "python3-venv")
)
TORCH = {
    "torch/__init__.py": "__version__ = '2.9.1+cu128'\n",
    "torch/version.py": "cuda = '12.8'\n",
    "torch/run.py": "def main():\n    print('torchrun')\n",
}


def nvidia(name: str, version: str, path: str) -> Wheel:
    """Make a stub of one of NVIDIA's wheels."""
    return make_wheel(name, version, files={f"nvidia/{path}": f"{name} {version}\n" * 50})


def small_wheels(nccl: str = "2.27.5") -> dict[str, tuple[Wheel, LayerName]]:
    """Return stubs of what a cell consists of: name → wheel and layer."""
    return {
        "nvidia-cublas-cu12": (
            nvidia("nvidia-cublas-cu12", "12.8.4.1", "cublas/lib/libcublas.so.12"),
            LayerName.CUDA,
        ),
        "nvidia-cudnn-cu12": (
            nvidia("nvidia-cudnn-cu12", "9.10.2.21", "cudnn/lib/libcudnn.so.9"),
            LayerName.CUDNN,
        ),
        "torch": (
            make_wheel("torch", "2.9.1", files=TORCH, scripts={"torchrun": "torch.run:main"}),
            LayerName.TORCH,
        ),
        "nvidia-nccl-cu12": (
            nvidia("nvidia-nccl-cu12", nccl, "nccl/lib/libnccl.so.2"),
            LayerName.NCCL,
        ),
    }


def locked(name: str, wheel: Wheel, layer: LayerName, index: str = "pypi") -> LockedWheel:
    """Return the lock's line of a wheel."""
    return LockedWheel(
        name=name,
        version=wheel.filename.split("-")[1],
        filename=wheel.filename,
        sha256=wheel.sha256,
        size=len(wheel.data),
        index=index,
        layer=layer,
    )


def small_lock(
    cell: str, wheels: dict[str, tuple[Wheel, LayerName]] | None = None, **changes: object
) -> Lock:
    """Return the lock of a small cell; `changes` replace fields of it."""
    made = wheels or small_wheels()
    order = list(LayerName)
    lines = sorted(
        (locked(name, wheel, layer) for name, (wheel, layer) in made.items()),
        key=lambda line: (order.index(line.layer), line.name),
    )
    nccl = next(line.version for line in lines if line.layer is LayerName.NCCL)
    lock = Lock(
        cell=cell,
        torch="2.9.1",
        cuda="cu128",
        cudnn="9.10.2.21",
        nccl=nccl,
        triton=None,
        python="3.11",
        platform="linux/amd64",
        base=BASE,
        wheels=tuple(lines),
        archs=("sm_80", "sm_90"),
        driver_floor="525.60.13",
    )
    return replace(lock, **changes)  # type: ignore[arg-type]


@dataclass
class Bench:
    """A folder, an index that answers, and the means to build small cells with a real engine."""

    folder: Path
    index: FakeIndex
    tag: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    @property
    def indexes(self) -> Indexes:
        return Indexes(pytorch=f"{self.index.url}/whl", urls=self.index.urls)

    def cell(self, suffix: str = "") -> str:
        """Return a name for a cell that no other test has."""
        return f"2.9.1-cu128-py311-test{self.tag}{suffix}"

    def serve(self, *wheels: Wheel) -> None:
        """Put wheels on the index's shelf."""
        shelf = self.index.shelves["pypi"]
        known = {wheel.filename for wheel in shelf}
        shelf += [wheel for wheel in wheels if wheel.filename not in known]

    def lock(self, suffix: str = "", nccl: str = "2.27.5", **changes: object) -> Lock:
        wheels = small_wheels(nccl)
        self.serve(*(wheel for wheel, _ in wheels.values()))
        return small_lock(self.cell(suffix), wheels, **changes)

    def build(self, engine: Engine, lock: Lock) -> Built:
        return engine.build(lock, folder=self.folder / "none", log=self.log)

    @property
    def log(self) -> Path:
        return self.folder / "build.log"

    def venv(self) -> VenvEngine:
        return VenvEngine(self.folder / "envs", self.indexes)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Small wheels on an index of the test's own, and an empty cache of uv."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    with FakeIndex({"pypi": []}) as index:
        yield Bench(folder=tmp_path, index=index)


@pytest.fixture
def docker_engine(bench: Bench) -> Iterator[DockerEngine]:
    """The Docker Engine of this machine; the images of the test are removed."""
    client = docker.from_env(timeout=60)
    yield DockerEngine(client, cache_dir(), bench.indexes)
    remove_images(client, bench.tag)


@pytest.fixture
def real_engine() -> Iterator[DockerEngine]:
    """The Docker Engine with the machine's own package index; what it builds is kept."""
    client = docker.from_env(timeout=60)
    yield DockerEngine(client, cache_dir(), Indexes(pytorch=load_facts().pytorch_url))
    client.close()


@pytest.fixture
def room() -> None:
    """Where TORCHPROOF_TESTS_TIDY asks for it, large images and build steps of before go."""
    if not os.environ.get("TORCHPROOF_TESTS_TIDY"):
        return
    client = docker.from_env(timeout=600)
    for name, image in image_names(client).items():
        if client.api.inspect_image(image)["Size"] > LARGE_IMAGE:
            client.images.remove(name, force=True)
    steps = [step for step in client.df()["BuildCache"] or () if step["Size"] > LARGE_IMAGE // 50]
    for step in steps:
        client.api.prune_builds(filters={"id": step["ID"]}, all=True)
    client.close()


@pytest.fixture
def podman_engine(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerEngine]:
    """Podman behind its Docker-compatible socket, as DOCKER_HOST."""
    with podman_service(bench.folder) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        client = docker.DockerClient(base_url=address, timeout=60)
        yield DockerEngine(client, cache_dir(), bench.indexes)
        remove_images(client, bench.tag)


@pytest.fixture(scope="session")
def real_environment(tmp_path_factory: pytest.TempPathFactory) -> tuple[VenvEngine, Built, Lock]:
    """The real torch 2.7.1 of the committed lock as an environment, in the shared cache."""
    lock = read_lock(lock_path("2.7.1-cu126-py311", Path(__file__).parents[2] / "images"))
    engine = VenvEngine(cache_dir() / "envs", Indexes(pytorch=load_facts().pytorch_url))
    folder = tmp_path_factory.mktemp("cell")
    return engine, engine.build(lock, folder=folder, log=folder / "log"), lock


def remove_images(client: docker.DockerClient, tag: str) -> None:
    """Remove the images of a bench."""
    for reference in image_names(client):
        if f"test{tag}" in reference:
            client.images.remove(reference, force=True)


def image_names(client: docker.DockerClient) -> dict[str, str]:
    """Return the names of cells' images and the ids that have them now.

    The SDK's own list asks for each image once more, and fails if another test has removed it.
    """
    return {
        name: image["Id"]
        for image in client.api.images()
        for name in image["RepoTags"] or ()
        if name.startswith(REPOSITORY)
    }


@contextmanager
def podman_service(folder: Path) -> Iterator[str]:
    """Run Podman's service on a socket in a folder; yields its address."""
    # Not below pytest's own folder: a socket's path has at most 107 bytes.
    place = Path("/tmp") / f"tp-podman-{uuid.uuid4().hex[:8]}"
    place.mkdir()
    with (folder / "podman.log").open("wb") as log:
        process = subprocess.Popen(
            ["podman", "--runtime", "runc", "system", "service", "--time=0", f"unix://{place}/p"],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for((place / "p").exists)
        yield f"unix://{place}/p"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
        shutil.rmtree(place, ignore_errors=True)


def wait_for(condition: object, seconds: float = 20.0) -> None:
    """Wait until a function returns something true."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
