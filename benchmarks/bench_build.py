"""docker build + push against assemble + push: same locks, same wheels, same kind of registry.

    make bench-build ARGS='--cells 2.7.1-cu126-py311,2.9.1-cu128-py311 --other 2.9.1-cu128-py311-nccl2.30.7'

Both sides start with the wheels in their caches, the base made and imported, and an empty registry
on loopback. The docker builder is at its best: uv with its cache mounted, layers shared between the
cells of one run. A comment in its requirement files keeps it from taking layers of earlier runs.
Write the result with --out; `--docs` puts it into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import docker
import httpx
import psutil
from isal import igzip_lib

from torchproof.assemble.baseimage import from_tar
from torchproof.assemble.builder import Assembler
from torchproof.assemble.cell import open_destination
from torchproof.assemble.wheelfile import DEFLATED, open_wheel
from torchproof.base import ensure_base
from torchproof.dockerfile import base_ref, render
from torchproof.engines.buildclient import BuildClient, find_build_client
from torchproof.facts import load_facts
from torchproof.index import Indexes, WheelStore, cache_dir
from torchproof.installing import ca_bundle, index_urls, installer_index, pip_config, uv_config
from torchproof.lock import Lock
from torchproof.lockfile import lock_path, read_lock
from torchproof.plan import make_plan

CHUNK = 1 << 20
START, END = "<!-- bench-build -->", "<!-- /bench-build -->"
REGISTRY: list[int] = []
"""Process ids of the registries; the last one runs."""


@dataclass
class Row:
    """One step of one builder. Times are seconds, sizes bytes; `stored` is the whole registry.

    `cpu` is what the builder, its daemons and the registry computed: it holds on a busy machine too.
    """

    step: str
    builder: str
    seconds: float
    cpu: float
    uploaded: int
    stored: int
    peak_memory: int
    disk: int
    detail: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", default="2.7.1-cu126-py311")
    parser.add_argument("--other", help="a cell that differs from the last in NCCL only")
    parser.add_argument("--sides", default="assemble,docker")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, default=Path("bench-build.json"))
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        return child(*asked.child)
    locks = [read_lock(lock_path(cell)) for cell in asked.cells.split(",")]
    other = read_lock(lock_path(asked.other)) if asked.other else None
    rows: list[Row] = []
    result: dict[str, Any] = {"cores": os.cpu_count(), "cells": asked.cells, "other": asked.other}
    prepare([*locks, *([other] if other else [])])
    if "assemble" in asked.sides:
        cpu = time.process_time()
        result["floor_seconds"] = floor(locks[0])
        result["floor_cpu"] = time.process_time() - cpu
        with workplace(asked.scratch) as (folder, registry):
            cpu = time.process_time()
            result["assemble_seconds"] = to_nowhere(locks[0], folder)
            result["assemble_cpu"] = time.process_time() - cpu
            rows += assemble_side(locks, other, folder, registry)
    if "docker" in asked.sides:
        with workplace(asked.scratch) as (folder, registry):
            rows += docker_side(locks, other, folder, registry)
    result["rows"] = [asdict(row) for row in rows]
    asked.out.write_text(json.dumps(result, indent=1) + "\n")
    text = table(result)
    print(text)
    if asked.docs:
        write_docs(text)
    return 0


def prepare(locks: list[Lock]) -> None:
    """Have the wheels, the tar of the base, and the base compressed, in torchproof's cache."""
    for lock in locks:
        store().fetch_all(lock.wheels)
        path = ensure_base(lock.base, lock.platform, cache=cache_dir(), log=Path(os.devnull))
        from_tar(path, Assembler(store(), cache_dir()).facts)


def store(cache: Path | None = None) -> WheelStore:
    return WheelStore(cache or cache_dir(), Indexes(pytorch=load_facts().pytorch_url))


@contextmanager
def workplace(scratch: Path) -> Iterator[tuple[Path, str]]:
    """Give a folder and an empty registry on loopback; both are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=scratch) as name:
        folder = Path(name)
        port = 5100 + os.getpid() % 800
        config = {
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
            "http": {"addr": f"127.0.0.1:{port}"},
            "log": {"level": "error", "accesslog": {"disabled": True}},
        }
        (folder / "registry.json").write_text(json.dumps(config))
        command = ["docker-registry", "serve", str(folder / "registry.json")]
        with subprocess.Popen(
            command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ) as server:
            try:
                wait_for(f"http://127.0.0.1:{port}/v2/")
                REGISTRY.append(server.pid)
                yield folder, f"127.0.0.1:{port}"
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


def processes(*names: str) -> list[psutil.Process]:
    """Return the running daemons of some names, and the registry."""
    found = [one for one in psutil.process_iter(["name"]) if one.info["name"] in names]
    return [*found, psutil.Process(REGISTRY[-1])]


def cpu_of(daemons: list[psutil.Process]) -> float:
    """Return the CPU seconds of processes and of the children that they waited for."""
    return sum(sum(one.cpu_times()[:4]) for one in daemons)


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def floor(lock: Lock) -> float:
    """Inflate a cell's wheels, and hash what goes in and what comes out; all cores."""

    def one(path: Path) -> None:
        packed, plain = hashlib.sha256(), hashlib.sha256()
        wheel = open_wheel(path)
        with path.open("rb", buffering=0) as file:
            for member in wheel.members:
                file.seek(member.offset)
                stream = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE)
                left = member.packed
                while left:
                    data = file.read(min(CHUNK, left))
                    left -= len(data)
                    packed.update(data)
                    if member.method != DEFLATED:
                        plain.update(data)
                        continue
                    while True:
                        plain.update(stream.decompress(data, CHUNK))
                        data = b""
                        if stream.needs_input or stream.eof:
                            break

    paths = [store().fetch(wheel) for wheel in lock.wheels]
    paths.sort(key=lambda path: -path.stat().st_size)
    started = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, paths))
    return time.monotonic() - started


class Nowhere:
    """A destination that hashes what comes and keeps nothing: what assembling alone costs."""

    ref = "nowhere"
    written_bytes = 0

    def current(self) -> str | None:
        return None

    def has(self, digest: str, size: int) -> bool:
        return False

    def stop(self) -> None:
        pass

    def write(
        self,
        source: Callable[[], Iterator[bytes]],
        *,
        digest: str | None = None,
        size: int | None = None,
    ) -> tuple[str, int]:
        hasher, count = hashlib.sha256(), 0
        for chunk in source():
            hasher.update(chunk)
            count += len(chunk)
        return f"sha256:{hasher.hexdigest()}", count

    def finish(self, manifest: bytes, config_digest: str, layers: tuple[str, ...]) -> str:
        return ""


def fresh_cache(folder: Path, name: str) -> Path:
    """Return a cache that knows no layer, but has wheels and bases."""
    cache = folder / name
    (cache / "layers").mkdir(parents=True)
    for part in ("wheels", "bases"):
        (cache / part).symlink_to(cache_dir() / part)
    return cache


def to_nowhere(lock: Lock, folder: Path) -> float:
    cache = fresh_cache(folder, "cache-nowhere")
    assembler = Assembler(store(cache), cache, workers=os.cpu_count())
    tar = ensure_base(lock.base, lock.platform, cache=cache, log=Path(os.devnull))
    base = from_tar(tar, assembler.facts)
    started = time.monotonic()
    assembler.build(make_plan(lock), lock, base, Nowhere())
    return time.monotonic() - started


def assemble_side(locks: list[Lock], other: Lock | None, folder: Path, registry: str) -> list[Row]:
    rows: list[Row] = []
    cache = fresh_cache(folder, "cache")

    def step(name: str, cells: list[Lock], repository: str = "bench") -> None:
        command = [sys.executable, __file__, "--child", str(cache), f"{registry}/{repository}"]
        command.append(",".join(lock.cell for lock in cells))
        before = shutil.disk_usage(folder).used
        stored = size_of(folder / "registry")
        cpu = cpu_of(processes()) + children_cpu()
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds = time.monotonic() - started
        cpu = cpu_of(processes()) + children_cpu() - cpu
        said = json.loads(done.stdout.splitlines()[-1])
        now = size_of(folder / "registry")
        disk = shutil.disk_usage(folder).used - before - (now - stored)
        row = Row(
            name,
            "assemble",
            seconds,
            cpu,
            said["uploaded"],
            now,
            said["peak"],
            max(0, disk),
            said["detail"],
        )
        rows.append(row)
        print(row, flush=True)

    for count in range(1, len(locks) + 1):
        step(f"cell {count} of {len(locks)}", locks[count - 1 : count])
    if other:
        step("one more NCCL", [other])
    step("nothing changed", [*locks, *([other] if other else [])])
    step("layer facts known, a registry without the layers", locks[:1], "elsewhere")
    return rows


def child(cache: str, target: str, cells: str) -> int:
    """Assemble cells in a process of their own; print what it took."""
    uploaded, seconds = 0, []
    for cell in cells.split(","):
        lock = read_lock(lock_path(cell))
        assembler = Assembler(store(Path(cache)), Path(cache))
        tar = ensure_base(lock.base, lock.platform, cache=Path(cache), log=Path(os.devnull))
        base = from_tar(tar, assembler.facts)
        with open_destination(f"{target}:{cell}", cell) as destination:
            # A registry without the layers must not be helped by mounting.
            built = assembler.build(make_plan(lock), lock, base, destination)
            uploaded += destination.written_bytes
            seconds.append(round(built.seconds, 2))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"uploaded": uploaded, "peak": peak, "detail": f"{seconds} s without start"}))
    return 0


def docker_build(builder: BuildClient, lock: Lock, tag: str, mark: str) -> None:
    with tempfile.TemporaryDirectory(prefix="context-") as name:
        context, secrets = Path(name) / "context", Path(name) / "secrets"
        context.mkdir()
        secrets.mkdir()
        for file, text in render(make_plan(lock), lock).items():
            marked = f"# {mark}\n{text}" if file.endswith(".txt") and file != "uv.txt" else text
            (context / file).write_text(marked)
        urls = index_urls(lock, Indexes(pytorch=load_facts().pytorch_url))
        (secrets / "pip.conf").write_text(pip_config(installer_index(urls)))
        (secrets / "uv.toml").write_text(uv_config(urls))
        found = {name: secrets / name for name in ("pip.conf", "uv.toml")}
        if bundle := ca_bundle(os.environ):
            found["ca"] = bundle
        command = [builder.program, *builder.arguments, f"--tag={tag}"]
        command += [f"--secret=id={name},src={path}" for name, path in found.items()]
        done = subprocess.run(
            [*command, str(context)],
            env={**os.environ, **builder.env},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])


def docker_side(locks: list[Lock], other: Lock | None, folder: Path, registry: str) -> list[Row]:
    rows: list[Row] = []
    nonce = uuid.uuid4().hex
    made: list[str] = []
    builder = find_build_client(podman=False, address=None)
    engine = docker.from_env()

    def step(name: str, cells: list[Lock]) -> None:
        stored = size_of(folder / "registry")
        root = Path(engine.info()["DockerRootDir"])
        disk = shutil.disk_usage(root).used
        daemons = processes("dockerd", "containerd")
        cpu = cpu_of(daemons) + children_cpu()
        with watched_memory("dockerd", "containerd") as peak:
            started = time.monotonic()
            built = 0.0
            for lock in cells:
                tag = f"{registry}/bench:{lock.cell}"
                made.append(tag)
                docker_build(builder, lock, tag, nonce)
                built = time.monotonic() - started
                command = [builder.program, "push", "--quiet", tag]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds = time.monotonic() - started
        cpu = cpu_of(daemons) + children_cpu() - cpu
        now = size_of(folder / "registry")
        used = shutil.disk_usage(root).used - disk - (now - stored)
        row = Row(
            name,
            "docker",
            seconds,
            cpu,
            now - stored,
            now,
            peak[0],
            max(0, used),
            f"build {built:.1f} s",
        )
        rows.append(row)
        print(row, flush=True)

    reference = base_ref(locks[0].base, locks[0].platform)
    if not engine.images.list(name=reference):
        tar = ensure_base(locks[0].base, locks[0].platform, cache=cache_dir(), log=Path(os.devnull))
        engine.api.import_image_from_file(str(tar), repository=reference)
    try:
        for count in range(1, len(locks) + 1):
            step(f"cell {count} of {len(locks)}", locks[count - 1 : count])
        if other:
            step("one more NCCL", [other])
        step("nothing changed", [*locks, *([other] if other else [])])
    finally:
        for tag in made:
            subprocess.run([builder.program, "rmi", tag], capture_output=True, check=False)
    return rows


@contextmanager
def watched_memory(*names: str) -> Iterator[list[int]]:
    """Sample the resident memory of some daemons; the list's one item is their highest sum."""
    peak, stop = [0], threading.Event()
    daemons = [one for one in psutil.process_iter(["name"]) if one.info["name"] in names]

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


def table(result: dict[str, Any]) -> str:
    lines = [
        f"{result['cores']} cores; cells {result['cells'].replace(',', ', ')}"
        + (f"; one more NCCL: {result['other']}" if result["other"] else ""),
        "",
        "| step | builder | seconds | times | CPU seconds | times | uploaded MB | stored MB | peak memory MB | disk MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    docker_rows = {row["step"]: row for row in result["rows"] if row["builder"] == "docker"}
    first = next(iter(docker_rows.values()), None)
    for row in result["rows"]:
        other = docker_rows.get(row["step"], first if "facts" in row["step"] else None)
        times = cpu_times = ""
        if other and row["builder"] == "assemble":
            times = f"{other['seconds'] / row['seconds']:.1f}×"
            cpu_times = f"{other['cpu'] / row['cpu']:.1f}×"
        lines.append(
            f"| {row['step']} | {row['builder']} | {row['seconds']:.1f} | {times} | "
            f"{row['cpu']:.1f} | {cpu_times} | "
            f"{row['uploaded'] / 1e6:,.1f} | {row['stored'] / 1e6:,.0f} | "
            f"{row['peak_memory'] / 1e6:,.0f} | {row['disk'] / 1e6:,.0f} |"
        )
    if "floor_seconds" in result:
        wall = result["assemble_seconds"] / result["floor_seconds"]
        cpu = result["assemble_cpu"] / result["floor_cpu"]
        lines += [
            "",
            f"Floor (inflate and hash the first cell's wheels): {result['floor_seconds']:.1f} s, "
            f"{result['floor_cpu']:.1f} CPU seconds; assembling it to nowhere: "
            f"{result['assemble_seconds']:.1f} s, {result['assemble_cpu']:.1f} CPU seconds: "
            f"{wall:.2f} times the floor, {cpu:.2f} in CPU.",
        ]
    return "\n".join(lines)


def write_docs(text: str) -> None:
    path = Path("docs/benchmarks.md")
    page = path.read_text()
    before, _, rest = page.partition(START)
    after = rest.partition(END)[2]
    path.write_text(f"{before}{START}\n{text}\n{END}{after}")


if __name__ == "__main__":
    raise SystemExit(main())
