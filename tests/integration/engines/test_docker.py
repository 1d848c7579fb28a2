"""Images of small cells by a real container engine: built, found again, run, faulty."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from tests.fakeindex import Fault, make_wheel
from tests.integration.fixtures_engine import (
    Bench,
    nvidia,
    remove_images,
    small_lock,
    small_wheels,
    wait_for,
)
from tests.integration.needs import needs
from torchproof.engines.build_cells import build_cells, shared
from torchproof.engines.containers import OWNER_LABEL, sweep
from torchproof.engines.docker import DockerEngine
from torchproof.engines.engine import RunSpec
from torchproof.errors import CellError, HostError, IndexUnreachableError, IntegrityError
from torchproof.index.indexes import Indexes, cache_dir
from torchproof.model.lock import WHEELHOUSE, LayerName, Lock

pytestmark = [needs("docker"), needs("bootstrap"), needs("network")]

LAYERS = ["base", "python", "cuda", "cudnn", "torch", "nccl", "config"]


def names(engine: DockerEngine, bench: Bench, lock: Lock) -> list[str]:
    return [layer.name for layer in bench.build(engine, lock).layers if layer.size]


def layer_of(bench: Bench, layer: LayerName, salt: str) -> Lock:
    """A cell with one wheel that no build before it had."""
    wheels = small_wheels()
    name = "nvidia-cublas-cu12"
    wheels[name] = (nvidia(name, "12.8.4.1", f"cublas/lib/{salt}.so"), layer)
    bench.serve(*(wheel for wheel, _ in wheels.values()))
    return small_lock(bench.cell(), wheels)


def test_an_image_has_the_layers_of_its_plan(docker_engine: DockerEngine, bench: Bench) -> None:
    assert names(docker_engine, bench, bench.lock()) == LAYERS


def test_a_second_build_is_found_and_takes_no_time(
    docker_engine: DockerEngine, bench: Bench
) -> None:
    lock = bench.lock()
    built = bench.build(docker_engine, lock)
    found = docker_engine.find(lock)
    assert found is not None
    assert found.reused
    assert (found.digest, found.layers) == (built.digest, built.layers)
    assert found.seconds < 2


def test_an_image_under_a_cells_name_that_is_another_is_not_taken(
    docker_engine: DockerEngine, bench: Bench
) -> None:
    lock, other = bench.lock(), bench.lock("-other", nccl="2.30.7")
    bench.build(docker_engine, lock)
    bench.build(docker_engine, other)
    client = docker.from_env()
    client.images.get(f"localhost/torchproof/cell:{other.cell}").tag(
        "localhost/torchproof/cell", lock.cell
    )
    assert docker_engine.find(lock) is None


def test_an_nccl_override_shares_all_layers_below_nccl(
    docker_engine: DockerEngine, bench: Bench
) -> None:
    plain = bench.build(docker_engine, bench.lock())
    other = bench.build(docker_engine, bench.lock("-nccl2.30.7", nccl="2.30.7"))
    below = LAYERS.index("nccl")
    assert plain.layers[:below] == other.layers[:below]
    assert plain.layers[below].digest != other.layers[below].digest
    sizes = shared([plain, other])
    assert sizes.saved == sum(layer.size for layer in plain.layers[:below])


def test_the_interpreter_and_the_programs_are_the_environments(
    docker_engine: DockerEngine, bench: Bench
) -> None:
    built = bench.build(docker_engine, bench.lock())
    script = (
        "import sys, torch, json;"
        "print(json.dumps([sys.prefix, torch.__version__, sys.flags.no_user_site]))"
    )
    done = docker_engine.run(built, RunSpec(command=["python", "-c", script]))
    assert json.loads(done.stdout) == ["/opt/venv", "2.9.1+cu128", 1]
    assert docker_engine.run(built, RunSpec(command=["torchrun"])).stdout == "torchrun\n"
    pip = docker_engine.run(built, RunSpec(command=["pip", "--version"]))
    assert "/opt/venv/" in pip.stdout


@pytest.mark.parametrize("user", [None, "1000700000:0", "12345:12345"])
def test_caches_can_be_written_by_any_user(
    docker_engine: DockerEngine, bench: Bench, user: str | None
) -> None:
    built = bench.build(docker_engine, bench.lock())
    script = (
        "import os, getpass; getpass.getuser();"
        "[os.makedirs(os.environ[name]) for name in ('TRITON_CACHE_DIR', 'TORCHINDUCTOR_CACHE_DIR',"
        " 'TORCH_HOME', 'TORCH_EXTENSIONS_DIR')];"
        "print(os.getuid(), os.getgid())"
    )
    done = docker_engine.run(built, RunSpec(command=["python", "-c", script], user=user))
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.split() == (user or "1000:0").split(":")


def test_home_can_be_written_by_a_random_user_of_group_0(
    docker_engine: DockerEngine, bench: Bench
) -> None:
    built = bench.build(docker_engine, bench.lock())
    command = ["sh", "-c", 'touch "$HOME/a" /workspace/b && ! touch /opt/venv/c 2>/dev/null']
    assert docker_engine.run(built, RunSpec(command=command, user="1000700000:0")).exit_code == 0


def test_a_command_that_hangs_is_ended_and_leaves_no_container(
    docker_engine: DockerEngine, bench: Bench
) -> None:
    built = bench.build(docker_engine, bench.lock())
    script = "import time; print('begun', flush=True); time.sleep(600)"
    spec = RunSpec(command=["python", "-c", script], timeout=3, name=f"hang-{bench.tag}")
    done = docker_engine.run(built, spec)
    assert done.exit_code is None
    assert done.stdout == "begun\n"
    assert done.seconds < 20
    assert not docker.from_env().containers.list(
        all=True, filters={"label": f"torchproof.run={spec.name}"}
    )


def test_a_command_that_dies_by_a_signal_says_which(
    docker_engine: DockerEngine, bench: Bench
) -> None:
    built = bench.build(docker_engine, bench.lock())
    script = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    assert docker_engine.run(built, RunSpec(command=["python", "-c", script])).exit_code == -11


def test_a_command_that_the_image_lacks_is_the_images_fault(
    docker_engine: DockerEngine, bench: Bench
) -> None:
    built = bench.build(docker_engine, bench.lock())
    done = docker_engine.run(built, RunSpec(command=["no-such-program"]))
    assert done.exit_code == 127


def test_mounts_are_read_only_and_shm_has_its_size(
    docker_engine: DockerEngine, bench: Bench
) -> None:
    built = bench.build(docker_engine, bench.lock())
    (bench.folder / "seen").mkdir()
    (bench.folder / "seen" / "a.txt").write_text("there")
    command = ["sh", "-c", "cat /seen/a.txt; touch /seen/b 2>/dev/null || df -k /dev/shm | tail -1"]
    spec = RunSpec(command=command, mounts={bench.folder / "seen": "/seen"}, shm_size=64 << 20)
    done = docker_engine.run(built, spec)
    assert done.stdout.startswith("there")
    assert "65536" in done.stdout


def test_gpus_that_the_machine_lacks_are_the_hosts_fault(
    docker_engine: DockerEngine, bench: Bench
) -> None:
    if docker_engine.host().gpus:
        pytest.skip("this machine has GPUs")
    built = bench.build(docker_engine, bench.lock())
    with pytest.raises(HostError):
        docker_engine.run(built, RunSpec(command=["true"], gpus=("0",)))


def test_what_a_killed_run_left_is_swept_away(docker_engine: DockerEngine, bench: Bench) -> None:
    built = bench.build(docker_engine, bench.lock())
    client = docker.from_env()
    owner = docker_engine.run(built, RunSpec(command=["true"]))  # as a proof that nothing is left
    assert owner.exit_code == 0
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    dead = f"{boot}:{Path('/proc/self/ns/pid').readlink()}:999999999:1"
    left = client.containers.create(built.digest, ["sleep", "9"], labels={OWNER_LABEL: dead})
    alien = client.containers.create(
        built.digest, ["sleep", "9"], labels={OWNER_LABEL: "other:pid:[1]:1:1"}
    )
    try:
        DockerEngine(client, cache_dir(), bench.indexes)
        present = {container.id for container in client.containers.list(all=True)}
        assert left.id not in present
        assert alien.id in present
    finally:
        alien.remove(force=True)


def test_containers_that_end_while_the_engine_lists_them_are_no_fault(
    docker_engine: DockerEngine, bench: Bench
) -> None:
    """Other runs on the machine start and remove containers all the time."""
    built = bench.build(docker_engine, bench.lock("-sweep"))
    done = threading.Event()

    def others() -> None:
        client = docker.from_env(timeout=60)
        while not done.is_set():
            labels = {OWNER_LABEL: "other:pid:[1]:1:1"}
            client.containers.create(built.digest, ["true"], labels=labels).remove(force=True)

    threads = [threading.Thread(target=others) for _ in range(4)]
    for thread in threads:
        thread.start()
    client = docker.from_env(timeout=60)
    try:
        for _ in range(100):
            sweep(client)
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_a_wrong_hash_stops_the_build_and_names_wheel_and_cell(
    docker_engine: DockerEngine, bench: Bench
) -> None:
    lock = layer_of(bench, LayerName.CUDA, f"wrong{bench.tag}")
    wrong = replace(lock.wheels[0], sha256="0" * 64)
    lock = replace(lock, wheels=(wrong, *lock.wheels[1:]))
    with pytest.raises(IntegrityError) as caught:
        bench.build(docker_engine, lock)
    assert lock.cell in str(caught.value)
    assert wrong.filename in str(caught.value)
    assert "sha256" in str(caught.value)


def test_a_truncated_wheel_stops_the_build_and_names_wheel_and_cell(
    docker_engine: DockerEngine, bench: Bench
) -> None:
    lock = layer_of(bench, LayerName.CUDA, f"cut{bench.tag}")
    bench.index.faults[lock.wheels[0].filename] = Fault.CUT
    with pytest.raises(IntegrityError) as caught:
        bench.build(docker_engine, lock)
    assert lock.cell in str(caught.value)
    assert lock.wheels[0].filename in str(caught.value)


def test_an_index_that_does_not_answer_blocks_the_cell(
    docker_engine: DockerEngine, bench: Bench
) -> None:
    lock = layer_of(bench, LayerName.CUDA, f"none{bench.tag}")
    bench.index.faults["/simple/nvidia-cublas-cu12/"] = Fault.UNAVAILABLE
    with pytest.raises(IndexUnreachableError, match=lock.cell):
        bench.build(docker_engine, lock)


def test_a_base_without_the_cells_python_says_so(docker_engine: DockerEngine, bench: Bench) -> None:
    lock = bench.lock(python="3.12")
    with pytest.raises(CellError, match=r"no python3\.12"):
        bench.build(docker_engine, lock)


def test_wheels_of_the_users_own_come_from_their_folder(bench: Bench) -> None:
    house = bench.folder / "house"
    house.mkdir()
    wheels = small_wheels()
    own = make_wheel("torch", "2.9.1", files={"torch/__init__.py": f"own = '{bench.tag}'\n"})
    wheels["torch"] = (own, LayerName.TORCH)
    (house / own.filename).write_bytes(own.data)
    bench.serve(*(wheel for name, (wheel, _) in wheels.items() if name != "torch"))
    lock = small_lock(bench.cell(), wheels)
    lock = replace(
        lock,
        wheels=tuple(
            replace(wheel, index=WHEELHOUSE) if wheel.name == "torch" else wheel
            for wheel in lock.wheels
        ),
    )
    indexes = Indexes(pytorch="", urls=bench.index.urls, wheelhouses=(house,))
    client = docker.from_env()
    engine = DockerEngine(client, cache_dir(), indexes)
    try:
        built = bench.build(engine, lock)
        done = engine.run(
            built, RunSpec(command=["python", "-c", "import torch; print(torch.own)"])
        )
        assert done.stdout.strip() == bench.tag
    finally:
        remove_images(client, bench.tag)


def test_credentials_of_an_index_are_in_no_layer_history_or_log(
    docker_engine: DockerEngine, bench: Bench
) -> None:
    secret = f"hunter2{bench.tag}"
    bench.index.login = f"user:{secret}"
    lock = layer_of(bench, LayerName.CUDA, f"login{bench.tag}")
    url = bench.index.url.replace("http://", f"http://user:{secret}@")
    indexes = Indexes(pytorch="", urls={"pypi": f"{url}/simple"})
    engine = DockerEngine(docker.from_env(), cache_dir(), indexes)
    built = bench.build(engine, lock)
    assert secret not in bench.log.read_text()
    saved = subprocess.run(["docker", "save", built.digest], capture_output=True, check=True)
    assert secret.encode() not in saved.stdout


def test_a_failing_cell_does_not_stop_the_others(docker_engine: DockerEngine, bench: Bench) -> None:
    good, bad = bench.lock("-good"), bench.lock("-bad", python="3.12")
    results = build_cells(docker_engine, [bad, good], reports=bench.folder, images=bench.folder)
    assert isinstance(results[0].error, CellError)
    assert results[0].log.read_text()
    assert results[1].built is not None


class Door:
    """A socket that leads to the Docker Engine, until it is shut."""

    def __init__(self, tag: str) -> None:
        self._path = Path("/tmp") / f"tp-door-{tag}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(64)
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def address(self) -> str:
        return f"unix://{self._path}"

    def shut(self) -> None:
        self._path.unlink(missing_ok=True)
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect("/var/run/docker.sock")
                self._ends += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def door(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    made = Door(bench.tag)
    monkeypatch.setenv("DOCKER_HOST", made.address)
    yield made
    made.shut()


def test_an_engine_that_goes_away_during_a_build_blocks_the_cell(door: Door, bench: Bench) -> None:
    lock = layer_of(bench, LayerName.CUDA, f"gone{bench.tag}")
    bench.index.faults[lock.wheels[0].filename] = Fault.STALL
    engine = DockerEngine(docker.from_env(), cache_dir(), bench.indexes)

    def shut_soon() -> None:
        wait_for(lambda: any(lock.wheels[0].filename in line for line in bench.index.requests), 60)
        door.shut()

    threading.Thread(target=shut_soon, daemon=True).start()
    (result,) = build_cells(engine, [lock], reports=bench.folder, images=bench.folder)
    assert isinstance(result.error, HostError), result.error
    assert "went away" in str(result.error)


def test_an_engine_that_goes_away_during_a_run_is_the_hosts_fault(door: Door, bench: Bench) -> None:
    client = docker.from_env()
    engine = DockerEngine(client, cache_dir(), bench.indexes)
    built = bench.build(engine, bench.lock())
    threading.Timer(2, door.shut).start()
    with pytest.raises(HostError, match="engine does not answer"):
        engine.run(built, RunSpec(command=["sleep", "8"]))
    direct = docker.DockerClient(base_url="unix:///var/run/docker.sock")
    for container in direct.containers.list(all=True, filters={"ancestor": built.digest}):
        container.remove(force=True)
    remove_images(direct, bench.tag)
