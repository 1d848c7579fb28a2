"""Assembled images in real engines, and beside what the docker builder makes of the same lock."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.needs import needs
from tests.integration.registries import running_registry
from tests.integration.trees import Tree, TreeDestination, docker_tree
from torchproof.assemble.base_image import from_tar
from torchproof.assemble.build_image import assemble, build_image
from torchproof.assemble.layer_facts import FactsStore
from torchproof.assemble.layout_destination import as_tar
from torchproof.assemble.make_layers import BuildResources
from torchproof.engines.select import choose
from torchproof.image.bootstrap import ensure_base
from torchproof.index.indexes import Indexes, cache_dir
from torchproof.index.wheel_store import WheelStore
from torchproof.model.lock import Lock
from torchproof.model.lock_file import read_lock
from torchproof.registry import Registry
from torchproof.upstream.facts import load_facts

pytestmark = [needs("docker"), needs("bootstrap"), needs("network")]

IMAGES = Path(__file__).parents[3] / "images"
REAL = "2.7.1-cu126-py311"
SMALL = 10_000_000
NAME = "localhost/torchproof-test:assembled"
SCRIPT = "import jinja2, sympy, os; print(jinja2.__version__, os.getuid(), os.getcwd())"


def small_lock() -> Lock:
    """Return a real cell without its large wheels: real packages, quick to build."""
    lock = read_lock(IMAGES / REAL / "lock.yaml")
    wheels = tuple(
        wheel
        for wheel in lock.wheels
        if wheel.size < SMALL and not wheel.name.startswith(("nvidia-", "triton"))
    )
    return replace(lock, cell="small-test-cell", wheels=wheels)


@pytest.fixture(scope="module")
def store() -> WheelStore:
    return WheelStore(cache_dir(), Indexes(pytorch=load_facts().pytorch_url))


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory, store: WheelStore) -> Path:
    folder = tmp_path_factory.mktemp("assembled")
    lock = small_lock()
    resources = BuildResources(store=store, cache=cache_dir())
    build_image(lock, str(folder / "oci"), resources, log=folder / "base.log", name=NAME)
    return folder / "oci"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    with running_registry(tmp_path / "registry") as running:
        yield running.host


def run(*command: str, stdin: bytes | None = None) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return done.stdout.decode()


def test_docker_loads_and_runs_it(layout: Path) -> None:
    try:
        run("docker", "load", stdin=b"".join(as_tar(layout)))
        said = run("docker", "run", "--rm", NAME, "python", "-c", SCRIPT).split()
        assert said[1:] == ["1000", "/workspace"]
        checked = run("docker", "run", "--rm", NAME, "pip", "list", "--format=json")
        names = {one["name"].lower() for one in json.loads(checked)}
        assert {"pip", "setuptools", "jinja2", "sympy"} <= names
    finally:
        subprocess.run(["docker", "rmi", NAME], capture_output=True, check=False)


@needs("registry")
def test_docker_pulls_it_from_a_registry(registry: str, store: WheelStore, tmp_path: Path) -> None:
    lock = small_lock()
    resources = BuildResources(store=store, cache=cache_dir())
    built = build_image(
        lock,
        f"{registry}/team/torch:t",
        resources,
        log=tmp_path / "log",
        beside=("team/other",),
    )
    assert built.ref == f"{registry}/team/torch:t"
    reference = f"{registry}/team/torch@{built.digest}"
    try:
        run("docker", "pull", reference)
        assert run("docker", "run", "--rm", reference, "python", "-c", SCRIPT)
    finally:
        subprocess.run(["docker", "rmi", reference], capture_output=True, check=False)


@needs("podman")
def test_skopeo_and_podman_accept_it(layout: Path, tmp_path: Path) -> None:
    source = f"oci:{layout}:{NAME}"
    assert json.loads(run("skopeo", "inspect", source))["Architecture"] == "amd64"
    run("skopeo", "copy", "--insecure-policy", source, f"dir:{tmp_path / 'copy'}")
    # Podman refuses long paths for its own files.
    with tempfile.TemporaryDirectory(prefix="tp") as short:
        podman = ["podman", "--runtime=runc", "--storage-driver=vfs"]
        podman += [f"--root={short}/r", f"--runroot={short}/n"]
        limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--network=host"]
        try:
            image = run(*podman, "pull", "--quiet", source).strip()
            said = run(*podman, "run", "--rm", *limits, image, "python", "-c", SCRIPT)
            assert said.split()[1:] == ["1000", "/workspace"]
        finally:
            command = [*podman, "rmi", "--all", "--force"]
            subprocess.run(command, capture_output=True, check=False)


ALLOWED_ONLY_DOCKER = re.compile(
    r"dockerenv|etc/(hostname|hosts|mtab|resolv\.conf)|opt/venv/\.lock|.*/__pycache__(/.*)?|.*\.pyc"
)
"""What the engine makes in a container; uv's lock; byte code."""
ALLOWED_DIFFERENT = re.compile(
    r"dev/console|opt/venv/bin/[^/]+|opt/venv/lib/python[\d.]+/site-packages/[^/]+\.dist-info/"
    r"(RECORD|INSTALLER)"
)
"""The engine's device; console scripts; the installer's name, and hashes of these."""


def differences(docker: Tree, assembled: Tree) -> list[str]:
    found = [
        f"only docker: {path}"
        for path in docker
        if path not in assembled and not ALLOWED_ONLY_DOCKER.fullmatch(path)
    ]
    found += [
        f"only assembled: {path}"
        for path in assembled
        if path not in docker and not path.endswith(".pyc")
    ]
    for path, node in docker.items():
        other = assembled.get(path)
        if other is None or node == other or path == "dev/console":
            continue
        plain = node._replace(content="") == other._replace(content="")
        if not (plain and ALLOWED_DIFFERENT.fullmatch(path)):
            found.append(f"different: {path}: {node} {other}")
    return found


def compare(lock: Lock, store: WheelStore, tmp_path: Path) -> None:
    engine = choose("docker", Indexes(pytorch=load_facts().pytorch_url))
    built = engine.find(lock) or engine.build(lock, folder=tmp_path, log=tmp_path / "docker.log")
    cache = tmp_path / "cache"
    facts = FactsStore(cache / "layers")
    tar = ensure_base(lock.base, lock.platform, cache=cache_dir(), log=tmp_path / "base.log")
    destination = TreeDestination()
    resources = BuildResources(store=store, cache=cache)
    assemble(lock, from_tar(tar, facts), destination, resources, facts=facts)
    assert differences(docker_tree(built.ref), destination.tree) == []


def test_both_builders_give_the_same_files(store: WheelStore, tmp_path: Path) -> None:
    lock = small_lock()
    try:
        compare(lock, store, tmp_path)
    finally:
        name = f"localhost/torchproof/cell:{lock.cell}"
        subprocess.run(["docker", "rmi", name], capture_output=True, check=False)


@pytest.mark.real_torch
def test_both_builders_give_the_same_files_of_a_real_cell(
    store: WheelStore, tmp_path: Path
) -> None:
    compare(read_lock(IMAGES / REAL / "lock.yaml"), store, tmp_path)


@needs("registry")
def test_a_killed_push_is_resumed(registry: str, store: WheelStore, tmp_path: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from tests.integration.assemble.test_images import small_lock
from torchproof.assemble.build_image import build_image
from torchproof.assemble.make_layers import BuildResources
from torchproof.assemble.layer import wheel_reader as reading
from torchproof.upstream.facts import load_facts
from torchproof.index.indexes import Indexes, cache_dir
from torchproof.index.wheel_store import WheelStore
read = reading.Sequential._read
def slow(self, end):
    for piece in read(self, end):
        time.sleep(0.05)
        yield piece
if sys.argv[1] == "slow":
    reading.Sequential._read = slow
lock = small_lock()
store = WheelStore(cache_dir(), Indexes(pytorch=load_facts().pytorch_url))
resources = BuildResources(store=store, cache=Path("{tmp_path}/cache"))
print(build_image(lock, "{registry}/k/torch:t", resources, log=Path("{tmp_path}/log")).digest)
"""
    (tmp_path / "cache").mkdir()
    for part in ("wheels", "bases"):
        (tmp_path / "cache" / part).symlink_to(cache_dir() / part)
    with Registry(registry) as client:
        with subprocess.Popen([sys.executable, "-c", script, "slow"]) as child:
            storage = tmp_path / "registry" / "storage"
            deadline = time.monotonic() + 60
            while not list(storage.rglob("_uploads/*/data")):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            child.kill()
        assert client.manifest_digest("k/torch", "t") is None
        digest = run(sys.executable, "-c", script, "fast").strip()
        assert client.manifest_digest("k/torch", "t") == digest
