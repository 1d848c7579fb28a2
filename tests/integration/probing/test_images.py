"""Probes in a container of a real image: its user, its /dev/shm, its PID 1."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.needs import needs
from torchproof._process import RunResult
from torchproof.assemble.target import image_name
from torchproof.engines.assembling import AssemblingEngine
from torchproof.engines.docker import DockerEngine
from torchproof.engines.engine import Engine, RunSpec
from torchproof.index.indexes import Indexes, cache_dir
from torchproof.index.wheel_store import WheelStore
from torchproof.model.lock import Lock
from torchproof.model.lock_file import lock_path, read_lock
from torchproof.model.results import Built, Host, Outcome, ProbeResult
from torchproof.probing.run_probes import open_trial, run_probes
from torchproof.probing.script import PROBES, load_probes, select_probes
from torchproof.upstream.facts import load_facts

pytestmark = [needs("docker"), needs("bootstrap"), needs("network"), pytest.mark.real_torch]
CELL = "2.7.1-cu126-py311"
NAMES = "shm,shm_docker_default,user,user_random_uid,signals,rendezvous"


class Changed:
    """A real engine whose runs are started with something changed."""

    name = "docker"

    def __init__(self, engine: DockerEngine, **changes: object) -> None:
        self._engine, self._changes = engine, changes

    def host(self) -> Host:
        return self._engine.host()

    def run(self, built: Built, spec: RunSpec) -> RunResult:
        changes = dict(self._changes)
        if shell := changes.pop("shell", None):
            changes["command"] = ["sh", "-c", f"{' '.join(spec.command)}; {shell}"]
        changes["env"] = {**spec.env, **changes.get("env", {})}  # type: ignore[dict-item]
        return self._engine.run(built, replace(spec, **changes))  # type: ignore[arg-type]


def outcomes(
    engine: Engine, built: Built, lock: Lock, reports: Path
) -> dict[str, tuple[Outcome, str]]:
    """Run every probe; return what each said, without its measurements."""
    trial = open_trial(engine, built, lock, folder=PROBES, reports=reports)
    found = run_probes(trial, select_probes(load_probes()))
    return {one.name: (one.outcome, one.code) for one in found}


def results(
    engine: DockerEngine, tmp_path: Path, names: str, **changes: object
) -> dict[str, ProbeResult]:
    lock = read_lock(lock_path(CELL))
    built = engine.find(lock) or engine.build(
        lock, folder=lock_path(CELL).parent, log=tmp_path / "log"
    )
    runner = Changed(engine, **changes)
    trial = open_trial(runner, built, lock, folder=PROBES, reports=tmp_path)
    chosen = select_probes(load_probes(), only=names)
    return {result.name: result for result in run_probes(trial, chosen)}


def test_a_real_image_passes_as_a_container(real_engine: DockerEngine, tmp_path: Path) -> None:
    found = results(real_engine, tmp_path, NAMES)
    told = {name: (result.outcome, result.message) for name, result in found.items()}
    assert {outcome for outcome, _ in told.values()} == {Outcome.PASS}, told
    assert "room for 6 NCCL segments" in found["shm_docker_default"].message


def test_an_assembled_image_gives_every_outcome_of_the_built_one(
    real_engine: DockerEngine, tmp_path: Path
) -> None:
    lock = read_lock(lock_path(CELL))
    log = tmp_path / "log"
    of_docker = real_engine.find(lock) or real_engine.build(
        lock, folder=lock_path(CELL).parent, log=log
    )
    assembling = AssemblingEngine(
        engine=real_engine,
        loader=real_engine,
        store=WheelStore(cache_dir(), Indexes(pytorch=load_facts().pytorch_url)),
        cache=cache_dir(),
        slim_only=False,
        layouts=tmp_path / "oci",
    )
    assembled = assembling.build(lock, folder=tmp_path, log=log)
    try:
        expected = outcomes(real_engine, of_docker, lock, tmp_path / "docker")
        assert outcomes(assembling, assembled, lock, tmp_path / "assembled") == expected
        passed = [name for name, (outcome, _) in expected.items() if outcome is Outcome.PASS]
        assert {"versions", "linkage", "torchrun", "ddp_step_gloo", "compile", "user"} <= {*passed}
    finally:
        loaded = image_name(lock.cell)
        subprocess.run(["docker", "rmi", "--force", loaded], capture_output=True, check=False)


def test_dockers_default_shm_fails_with_the_remedy(
    real_engine: DockerEngine, tmp_path: Path
) -> None:
    result = results(real_engine, tmp_path, "shm", shm_size=64 * 1024**2)["shm"]
    assert (result.outcome, result.code) == (Outcome.FAIL, "shm_small")
    assert "--shm-size=1g" in result.fix


def test_root_is_named(real_engine: DockerEngine, tmp_path: Path) -> None:
    result = results(real_engine, tmp_path, "user", user="0:0")["user"]
    assert result.code == "runs_as_root"


def test_a_home_at_the_root_is_named(real_engine: DockerEngine, tmp_path: Path) -> None:
    found = results(real_engine, tmp_path, "user_random_uid", env={"HOME": "/"})
    assert found["user_random_uid"].code == "not_writable"


def test_a_shell_before_the_process_is_named(real_engine: DockerEngine, tmp_path: Path) -> None:
    result = results(real_engine, tmp_path, "signals", shell="true")["signals"]
    # With an init in front the shell itself dies of it, and takes the process along.
    assert (result.outcome, result.code) in [
        (Outcome.FAIL, "sigterm"),
        (Outcome.FAIL, "sigterm_lost"),
    ]
