"""docker build + push against assemble + push: same locks, same wheels, same kind of registry.

    make bench-build ARGS='--docs'

Both sides start with the wheels in their caches, the base made and imported, and an empty registry
(Debian's docker-registry) on loopback, whose storage is in memory where it fits. The docker builder
is at its best: uv with its cache mounted and warm, layers shared between the cells of one run. A
comment in its requirement files keeps it from taking layers of earlier runs; `--warm` builds the
cells once before, so that uv's cache has them. The other side is the command that a user runs.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import docker
import httpx
import psutil
from buildfloor import floor, to_nowhere
from buildtable import table, write_docs

from torchproof.assemble.base_image import from_tar
from torchproof.assemble.layer_facts import FactsStore
from torchproof.engines.build_client import BuildClient, find_build_client
from torchproof.engines.build_context import write_secrets
from torchproof.engines.installer import index_urls
from torchproof.image.bootstrap import ensure_base
from torchproof.image.dockerfile import base_ref, render
from torchproof.index.indexes import Indexes, cache_dir
from torchproof.index.wheel_store import WheelStore
from torchproof.model.lock import Lock
from torchproof.model.lock_file import lock_path, read_lock
from torchproof.upstream.facts import load_facts

HERE = Path(__file__).parent
BUILD = HERE.parent / "build.py"
MATRIX = HERE / "build-matrix.yaml"
CASES = {"1 cell": "2.7.1-cu126-py311", "2 cells": "2.?.1-*-py311", "4 cells": "*-py311"}
"""What one command builds, by a glob of cells; each has the cells of those before."""
OTHER = "2.9.1-cu128-py311-nccl2.30.7"
MEMORY = Path("/dev/shm")
KNOWN = "layer facts known, new registry"


@dataclass(frozen=True)
class Row:
    """One step of one builder. Times are seconds, sizes bytes.

    `cpu` is what the builder, its daemons and the registry computed: it holds on a busy machine too.
    `uploaded` is what the registry's storage grew by, `stored` all of it; `disk` is what the builder
    takes on its own side.
    """

    step: str
    builder: str
    seconds: float
    cpu: float
    uploaded: int
    stored: int
    peak_memory: int
    disk: int
    build_seconds: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES), help="which of them")
    parser.add_argument("--sides", default="assemble,docker")
    parser.add_argument("--repeat", type=int, default=3, help="runs of the assemble side")
    parser.add_argument("--warm", action="store_true", help="fill uv's cache mount before")
    parser.add_argument("--scratch", type=Path, help="where the registry's storage goes")
    parser.add_argument("--out", type=Path, default=Path("build/bench-build.json"))
    parser.add_argument("--docs", action="store_true", help="put the table into docs/benchmarks.md")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # registries are stopped then, too
    cases = {case: CASES[case] for case in asked.cases.split(",")}
    result: dict[str, Any] = {"cores": os.cpu_count(), "load": os.getloadavg()}
    rows: list[Row] = []
    scratch = asked.scratch or roomy(16_000_000_000)
    with prepared([*cases.values(), OTHER]) as folder:
        runs: list[list[Row]] = []

        def assembling(times: int) -> None:
            runs.extend(assemble_side(folder, scratch, cases) for _ in range(times))

        # A machine that others use too is not as fast all the time: docker's rows stand in the
        # middle of the others.
        before = asked.repeat // 2 if "docker" in asked.sides else asked.repeat
        if "assemble" in asked.sides:
            assembling(before)
        if "docker" in asked.sides:
            if asked.warm:
                docker_side(folder, scratch, cases, push=False)
                forget_layers()
            rows += docker_side(folder, scratch, cases)
        if "assemble" in asked.sides:
            assembling(asked.repeat - before)
            rows[:0] = [middle(same) for same in zip(*runs, strict=True)]
            result["runs"] = [[asdict(row) for row in run] for run in runs]
            lock = locks_of(folder, CASES["1 cell"])[0]
            result["floor"] = asdict(floor(lock, store()))
            cache = fresh_cache(folder, [lock])
            result["nowhere"] = asdict(to_nowhere(lock, store(cache), cache))
    result["rows"] = [asdict(row) for row in rows]
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(result, indent=1) + "\n")
    text = table(result)
    print(text)
    if asked.docs:
        write_docs(text)
    return 0


def forget_layers() -> None:
    """Take the layers of earlier builds out of the builder's cache; uv's cache stays."""
    program = find_build_client(podman=False, address=None).program
    command = [program, "builder", "prune", "--force", "--all", "--filter", "type=regular"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def middle(rows: Sequence[Row]) -> Row:
    """Return the run of median time."""
    time_ = statistics.median_low(row.seconds for row in rows)
    return next(row for row in rows if row.seconds == time_)


def roomy(size: int) -> Path:
    """Return a folder in memory if that leaves as much again for the rest, else on disk."""
    if not MEMORY.is_dir():
        return Path(tempfile.gettempdir())
    room = min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available - size // 4)
    return MEMORY if room > size else Path(tempfile.gettempdir())


@contextmanager
def prepared(globs: Sequence[str]) -> Iterator[Path]:
    """Give a folder with locks, the wheels being in the cache, and each base made and imported."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        shutil.copy(MATRIX, folder / "matrix.yaml")
        subprocess.run([sys.executable, BUILD, "lock"], cwd=folder, check=True)
        for glob in globs:
            for lock in locks_of(folder, glob):
                store().fetch_all(lock.wheels)
                ensure_base(lock.base, lock.platform, cache=cache_dir(), log=Path(os.devnull))
        yield folder


def locks_of(folder: Path, glob: str) -> list[Lock]:
    names = sorted(path.parent.name for path in folder.glob("images/*/lock.yaml"))
    found = [name for name in names if fnmatch.fnmatchcase(name, glob)]
    return [read_lock(lock_path(name, folder / "images")) for name in found]


def store(cache: Path | None = None) -> WheelStore:
    return WheelStore(cache or cache_dir(), Indexes(pytorch=load_facts().pytorch_url))


@dataclass(frozen=True)
class RunningRegistry:
    host: str
    storage: Path
    process: psutil.Process

    def stored(self) -> int:
        return size_of(self.storage)


@contextmanager
def running_registry(scratch: Path) -> Iterator[RunningRegistry]:
    """Start an empty registry on loopback."""
    with tempfile.TemporaryDirectory(prefix="bench-registry-", dir=scratch) as name:
        port = 5100 + os.getpid() % 800
        storage = Path(name) / "storage"
        storage.mkdir()
        config = {
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": str(storage)}},
            "http": {"addr": f"127.0.0.1:{port}"},
            "log": {"level": "error", "accesslog": {"disabled": True}},
        }
        (Path(name) / "config.json").write_text(json.dumps(config))
        command = ["docker-registry", "serve", f"{name}/config.json"]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdout=quiet, stderr=quiet) as server:
            try:
                wait_for(f"http://127.0.0.1:{port}/v2/")
                yield RunningRegistry(f"127.0.0.1:{port}", storage, psutil.Process(server.pid))
            finally:
                server.terminate()


def wait_for(url: str) -> None:
    for _ in range(100):
        try:
            if httpx.get(url).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit("the registry does not start")


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def cpu_of(processes: Sequence[psutil.Process]) -> float:
    """Return the CPU seconds of processes and of the children that they waited for."""
    return sum(sum(one.cpu_times()[:4]) for one in processes)


def fresh_cache(folder: Path, locks: Sequence[Lock]) -> Path:
    """Return a cache that has wheels and bases, and knows no layer but the base's."""
    cache = Path(tempfile.mkdtemp(prefix="cache-", dir=folder))
    for part in ("wheels", "bases"):
        (cache / part).symlink_to(cache_dir() / part)
    for lock in locks:
        tar = ensure_base(lock.base, lock.platform, cache=cache, log=Path(os.devnull))
        from_tar(tar, FactsStore(cache / "layers"))
    return cache


def assemble_side(folder: Path, scratch: Path, cases: Mapping[str, str]) -> list[Row]:
    """Each case from nothing, then: no change and one more NCCL, or a new registry."""
    rows: list[Row] = []
    for case, glob in cases.items():
        for facts in folder.glob("images/*/layers.yaml"):
            facts.unlink()
        cache = fresh_cache(folder, locks_of(folder, glob))
        with running_registry(scratch) as registry:
            rows.append(assemble(case, glob, folder, cache, registry))
            if case == list(cases)[-1]:
                rows.append(assemble("one more NCCL", OTHER, folder, cache, registry))
                rows.append(assemble("nothing changed", glob, folder, cache, registry))
        if case == "1 cell":
            with running_registry(scratch) as registry:
                rows.append(assemble(KNOWN, glob, folder, cache, registry))
    return rows


def assemble(step: str, glob: str, folder: Path, cache: Path, registry: RunningRegistry) -> Row:
    """Run the command line in a process of its own, as a user would."""
    command = [sys.executable, str(BUILD), "build", "--builder", "assemble"]
    command += ["--to", f"{registry.host}/bench", "--only", glob]
    env = {**os.environ, "TORCHPROOF_CACHE": str(cache)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    stored, disk = registry.stored(), size_of(cache / "layers")
    cpu, started = cpu_of([registry.process]), time.monotonic()
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        said = run.stdout.read()
        _, status, used = os.wait4(run.pid, 0)
        seconds = time.monotonic() - started
        run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode:
        raise SystemExit(said)
    row = Row(
        step,
        "assemble",
        seconds,
        cpu_of([registry.process]) - cpu + used.ru_utime + used.ru_stime,
        registry.stored() - stored,
        registry.stored(),
        used.ru_maxrss * 1024,
        size_of(cache / "layers") - disk,
    )
    print(row, flush=True)
    return row


def docker_side(
    folder: Path, scratch: Path, cases: Mapping[str, str], *, push: bool = True
) -> list[Row]:
    """The cells one after the other: a case's row is the sum of what its cells took."""
    rows: list[Row] = []
    made: list[str] = []
    nonce = uuid.uuid4().hex
    builder = find_build_client(podman=False, address=None)
    import_base(locks_of(folder, CASES["1 cell"])[0])
    with running_registry(scratch) as registry:

        def step(name: str, cells: Sequence[Lock]) -> None:
            root = Path(docker.from_env().info()["DockerRootDir"])
            stored, disk = registry.stored(), shutil.disk_usage(root).used
            daemons = [
                *(one for one in psutil.process_iter(["name"]) if one.info["name"] in DAEMONS),
                registry.process,
            ]
            cpu = cpu_of(daemons) + children_cpu()
            building = 0.0
            with watched_memory(daemons[:-1]) as peak:
                started = time.monotonic()
                for lock in cells:
                    tag = f"{registry.host}/bench:{lock.cell}"
                    made.append(tag)
                    began = time.monotonic()
                    docker_build(builder, lock, tag, nonce)
                    building += time.monotonic() - began
                    if push:
                        command = [builder.program, "push", "--quiet", tag]
                        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                seconds = time.monotonic() - started
            cpu = cpu_of(daemons) + children_cpu() - cpu
            now = registry.stored()
            in_memory = registry.storage.is_relative_to(MEMORY)
            grown = shutil.disk_usage(root).used - disk - (0 if in_memory else now - stored)
            used = max(0, grown)
            rows.append(
                Row(name, "docker", seconds, cpu, now - stored, now, peak[0], used, building)
            )
            print(rows[-1], flush=True)

        try:
            sums: list[Row] = []
            for case, glob in cases.items():
                done = [tag.rpartition(":")[2] for tag in made]
                step(case, [lock for lock in locks_of(folder, glob) if lock.cell not in done])
                sums.append(rows.pop() if not sums else together(sums[-1], rows.pop()))
            step("one more NCCL", locks_of(folder, OTHER))
            step("nothing changed", locks_of(folder, glob))
            rows[:0] = sums
        finally:
            for tag in made:
                subprocess.run([builder.program, "rmi", tag], capture_output=True, check=False)
    return rows


def together(before: Row, row: Row) -> Row:
    """Add what the cells of an earlier case took (memory: the higher peak)."""
    return replace(
        row,
        seconds=before.seconds + row.seconds,
        cpu=before.cpu + row.cpu,
        uploaded=before.uploaded + row.uploaded,
        disk=before.disk + row.disk,
        build_seconds=before.build_seconds + row.build_seconds,
        peak_memory=max(before.peak_memory, row.peak_memory),
    )


DAEMONS = ("dockerd", "containerd")


def import_base(lock: Lock) -> None:
    engine = docker.from_env()
    reference = base_ref(lock.base, lock.platform)
    if not engine.images.list(name=reference):
        tar = ensure_base(lock.base, lock.platform, cache=cache_dir(), log=Path(os.devnull))
        engine.api.import_image_from_file(str(tar), repository=reference)


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def docker_build(builder: BuildClient, lock: Lock, tag: str, mark: str) -> None:
    with tempfile.TemporaryDirectory(prefix="context-") as name:
        context, secrets = Path(name) / "context", Path(name) / "secrets"
        context.mkdir()
        for file, text in render(lock).items():
            marked = f"# {mark}\n{text}" if file.endswith(".txt") and file != "uv.txt" else text
            (context / file).write_text(marked)
        urls = index_urls(lock, Indexes(pytorch=load_facts().pytorch_url))
        found = write_secrets(secrets, urls)
        command = [builder.program, *builder.arguments, f"--tag={tag}"]
        command += [f"--secret=id={name},src={path}" for name, path in found.items()]
        env = {**os.environ, **builder.env}
        done = subprocess.run(
            [*command, str(context)], env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])


@contextmanager
def watched_memory(daemons: Sequence[psutil.Process]) -> Iterator[list[int]]:
    """Sample the resident memory of some daemons; the list's one item is their highest sum."""
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.3):
            peak[0] = max(peak[0], sum(one.memory_info().rss for one in daemons))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    raise SystemExit(main())
