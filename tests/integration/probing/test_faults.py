"""Each CPU probe passes on a real torch, and fails by a real fault with its own words."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.needs import needs
from torchproof.engines.venv import VenvEngine
from torchproof.model.lock import Lock
from torchproof.model.results import Built, Outcome
from torchproof.probing.diagnosis import diagnose
from torchproof.probing.run_probes import RunOptions, expectations, open_trial, run_probes
from torchproof.probing.script import PROBES, load_probes, select_probes

pytestmark = [needs("network"), pytest.mark.real_torch, pytest.mark.timeout(600)]
SABOTAGE = Path(__file__).parents[2] / "fixtures" / "sabotage.py"


@pytest.fixture
def cell(real_environment: tuple[VenvEngine, Built, Lock]) -> tuple[VenvEngine, Built, Lock]:
    return real_environment


@pytest.fixture
def python(cell: tuple[VenvEngine, Built, Lock]) -> Path:
    return Path(cell[1].ref) / "bin" / "python"


def run(python: Path, script: str, *before: str, fault: str = "", **env: str) -> dict[str, Any]:
    """Run a probe script with a fault; returns its answer and exit code."""
    name, *arguments = script.split()
    path = str(PROBES / f"{name}.py")
    command = [*before, str(python), *([str(SABOTAGE), fault] if fault else []), path, *arguments]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "PYTHON", "MASTER_"))}
    clean |= {"PATH": f"{python.parent}:{os.environ['PATH']}", "TORCHPROOF_TIMEOUT": "240"} | env
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    assert done.stdout.strip(), done.stderr
    return {**json.loads(done.stdout), "exit": done.returncode, "stderr": done.stderr}


def test_every_cpu_probe_passes_on_a_real_cell(
    cell: tuple[VenvEngine, Built, Lock], tmp_path: Path
) -> None:
    engine, built, lock = cell
    cpu = [p.name for p in load_probes() if p.gpus == 0 and not p.container_only]
    chosen = select_probes(load_probes(), only=",".join([*cpu, "nccl_init", "ddp_step"]))
    trial = open_trial(engine, built, lock, folder=PROBES, reports=tmp_path, options=RunOptions())
    results = {result.name: result for result in run_probes(trial, chosen)}
    told = {name: (results[name].outcome, results[name].message) for name in cpu}
    assert {outcome for outcome, _ in told.values()} == {Outcome.PASS}, told
    if not trial.host.gpus:
        assert results["nccl_init"].outcome is Outcome.SKIP
        assert "NCCL 2.26.2 loads" in results["nccl_init"].message
        assert results["ddp_step"].code == "too_few_gpus"
    again: list[bool] = []
    run_probes(trial, chosen, on_result=lambda result, kept: again.append(kept))
    assert all(again)


@pytest.mark.parametrize(
    ("key", "value"), [("nccl", "2.27.5"), ("cudnn", "9.10.2.21"), ("torch", "2.9.1")]
)
def test_versions_names_what_differs_from_the_lock(
    python: Path, cell: tuple[VenvEngine, Built, Lock], key: str, value: str
) -> None:
    lock = json.dumps(expectations(cell[2], cell[1]) | {key: value})
    answer = run(python, "versions", TORCHPROOF_LOCK=lock)
    assert (answer["exit"], answer["code"]) == (1, "version_mismatch")
    assert value in answer["message"]


@pytest.mark.parametrize(
    ("script", "fault", "code"),
    [
        ("ddp_step --backend gloo", "wrong_gradient_sum", "gradient_mismatch"),
        ("ddp_step --backend gloo", "no_sync", "gradient_not_reduced"),
        ("ddp_step --backend gloo", "other_weights", "weights_differ"),
        ("allreduce_bandwidth --backend gloo --max-bytes 4096", "wrong_sum", "wrong_sum"),
        ("allreduce_bandwidth --backend gloo --max-bytes 4096", "killed_rank", "rank_died"),
        ("sampler", "deaf_sampler", "not_reshuffled"),
        ("sampler", "whole_data_sampler", "not_complete"),
        ("determinism", "other_random", "not_deterministic"),
        ("spawn", "other_interpreter", "wrong_interpreter"),
    ],
)
def test_a_planted_fault_is_found(python: Path, script: str, fault: str, code: str) -> None:
    answer = run(python, script, fault=fault)
    assert (answer["exit"], answer["code"]) == (1, code), answer


def test_a_sleeping_rank_is_a_timeout_and_its_stack_is_kept(python: Path) -> None:
    script = "allreduce_bandwidth --backend gloo --max-bytes 4096"
    answer = run(python, script, fault="sleeping_rank", TORCHPROOF_TIMEOUT="40")
    assert answer["exit"] == 1
    known = diagnose(answer["message"])
    assert answer["code"] == "hang" or (known and known.code == "collective_timeout"), answer
    assert "in asleep" in answer["stderr"]


def test_a_torchrun_of_another_python_is_named(python: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "torchrun"
    stranger.write_text(f"#!{Path(sys.base_prefix) / 'bin' / 'python3'}\n")
    stranger.chmod(0o755)
    answer = run(python, "torchrun", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert answer["code"] == "wrong_shebang"
    assert str(stranger) in answer["message"]


def test_a_torchrun_whose_python_is_gone_is_named(python: Path, tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_text("#!/moved/venv/bin/python\n")
    (tmp_path / "torchrun").chmod(0o755)
    answer = run(python, "torchrun", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert "/moved/venv/bin/python" in answer["message"]


def test_no_torchrun_is_named(python: Path, tmp_path: Path) -> None:
    assert run(python, "torchrun", PATH=str(tmp_path))["code"] == "torchrun_missing"


def test_a_foreign_preloaded_nccl_is_named(python: Path, tmp_path: Path) -> None:
    own = next((python.parent.parent / "lib").rglob("libnccl.so.2"))
    foreign = shutil.copy(own, tmp_path / "libnccl.so.2")
    answer = run(python, "linkage", LD_PRELOAD=str(foreign))
    assert answer["code"] == "foreign_library"
    assert f"LD_PRELOAD={foreign}" in answer["message"]


def test_an_nccl_without_a_symbol_that_torch_needs_is_named(python: Path, tmp_path: Path) -> None:
    source, library = tmp_path / "old.c", tmp_path / "libnccl.so.2"
    source.write_text("int ncclGetVersion(int *v) { *v = 21803; return 0; }\n")
    soname = "-Wl,-soname,libnccl.so.2"
    subprocess.run(["cc", "-shared", "-fPIC", soname, "-o", library, source], check=True)
    answer = run(python, "linkage", LD_PRELOAD=str(library))
    assert answer["code"] == "nccl_symbol"
    assert "torch needs nccl" in answer["message"]


def test_another_cudnn_on_the_library_path_is_named(python: Path, tmp_path: Path) -> None:
    (tmp_path / "libcudnn_ops.so.9").write_bytes(b"")
    answer = run(python, "linkage", LD_LIBRARY_PATH=str(tmp_path))
    assert answer["code"] == "cudnn_sublibraries"
    assert str(tmp_path) in answer["message"]


def test_no_compiler_is_named(python: Path, tmp_path: Path) -> None:
    assert run(python, "compile", PATH=str(tmp_path))["code"] == "no_compiler"


def test_a_compile_that_was_switched_off_is_seen(python: Path) -> None:
    assert run(python, "compile", TORCHDYNAMO_DISABLE="1")["code"] == "not_compiled"


def test_a_home_that_is_not_writable_is_named(python: Path) -> None:
    answer = run(python, "user", HOME="/proc/nowhere", XDG_CACHE_HOME="/tmp")
    assert answer["code"] == "not_writable"
    assert "HOME=/proc/nowhere" in answer["message"]


def test_a_cache_below_the_root_is_named(python: Path) -> None:
    answer = run(python, "user", TRITON_CACHE_DIR="/proc/.triton")
    assert answer["code"] == "not_writable"
    assert "TRITON_CACHE_DIR" in answer["fix"]


def test_packages_of_pythonpath_are_named(python: Path, tmp_path: Path) -> None:
    (tmp_path / "leak-1.0.dist-info").mkdir()
    assert run(python, "user", PYTHONPATH=str(tmp_path))["code"] == "pythonpath"


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that every uid may enter: those of pytest are its user's alone."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root for another uid and namespaces")
class TestAsRoot:
    """Faults that only root can set up."""

    def test_a_uid_without_a_passwd_entry_is_named(self, common: Path) -> None:
        system = Path("/usr/bin/python3")
        probes = shutil.copytree(PROBES, common / "probes")
        home = common / "home"
        home.mkdir(mode=0o777)
        home.chmod(0o777)
        command = ["setpriv", "--reuid", "1000700000", "--regid", "0", "--clear-groups"]
        stub = common / "torch" / "_inductor" / "runtime"
        stub.mkdir(parents=True)
        for place in (stub, stub.parent, stub.parent.parent):
            (place / "__init__.py").touch()
        name = "import getpass\ndef cache_dir():\n    return getpass.getuser()\n"
        (stub / "cache_dir_utils.py").write_text(name)
        done = subprocess.run(
            [*command, str(system), str(probes / "user.py")],
            env={"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(common)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        answer = json.loads(done.stdout)
        assert answer["code"] == "uid_without_passwd"
        assert "1000700000" in answer["message"]

    def test_a_small_shm_is_named_with_its_room(self, python: Path) -> None:
        script = f'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "{python}" "$0"'
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script, str(PROBES / "shm.py")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        answer = json.loads(done.stdout)
        assert answer["code"] == "shm_small"
        assert "64 MiB" in answer["message"]
        assert "room for 6 NCCL segments" in answer["message"]
        assert "--shm-size=1g" in answer["fix"]

    def test_a_hostname_that_does_not_resolve_is_named(self, python: Path) -> None:
        script = f'hostname no-such-host-zz && exec "{python}" "$0"'
        done = subprocess.run(
            ["unshare", "-u", "sh", "-c", script, str(PROBES / "rendezvous.py")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        answer = json.loads(done.stdout)
        assert answer["code"] == "hostname_unresolvable"
        assert "no-such-host-zz" in answer["message"]

    def test_a_shell_as_pid_1_loses_sigterm(self, python: Path) -> None:
        script = f'"{python}" "$0"; true'
        done = subprocess.run(
            ["unshare", "-pf", "--mount-proc", "sh", "-c", script, str(PROBES / "signals.py")],
            env={**os.environ, "TORCHPROOF_SUBJECT": "image"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        answer = json.loads(done.stdout)
        assert answer["code"] == "sigterm_lost"
        assert "PID 1 is `sh -c" in answer["message"]

    def test_little_locked_memory_is_named_where_rdma_is_asked_for(self, python: Path) -> None:
        limit = ("prlimit", "--memlock=8388608")
        answer = run(python, "rendezvous", *limit, NCCL_IB_HCA="mlx5_0")
        assert answer["code"] == "memlock_small"
        assert "8 MiB" in answer["message"]


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        yield server.getsockname()[1]


def test_who_holds_the_master_port_is_named(python: Path, listening: int) -> None:
    answer = run(python, "rendezvous", MASTER_PORT=str(listening))
    assert answer["code"] == "port_in_use"
    assert f"pid {os.getpid()}" in answer["message"]


@pytest.mark.parametrize(
    ("code", "env"),
    [
        ("master_addr_invalid", {"MASTER_ADDR": "[::1]:29500"}),
        ("master_addr_invalid", {"MASTER_ADDR": "tcp://node1"}),
        ("master_unresolvable", {"MASTER_ADDR": "no-such-host.invalid"}),
        ("rank0_not_master", {"MASTER_ADDR": "192.0.2.1", "RANK": "0", "WORLD_SIZE": "2"}),
        ("master_port_invalid", {"MASTER_PORT": "eleven"}),
        ("interface_not_found", {"NCCL_SOCKET_IFNAME": "ib9"}),
        ("duplicate_gpu", {"LOCAL_WORLD_SIZE": "4", "NVIDIA_VISIBLE_DEVICES": "0"}),
    ],
)
def test_a_wrong_rendezvous_is_named(python: Path, code: str, env: dict[str, str]) -> None:
    answer = run(python, "rendezvous", **env)
    assert answer["code"] == code, answer


def test_an_address_of_ipv6_is_taken_as_it_is(python: Path) -> None:
    answer = run(python, "rendezvous", MASTER_ADDR="::1", RANK="1")
    assert answer["code"] in ("ok", "no_ipv6")


def test_a_launcher_that_ignores_sigterm_is_named(python: Path) -> None:
    script = f'trap \'\' TERM; exec "{python}" "$0"'
    done = subprocess.run(
        ["sh", "-c", script, str(PROBES / "signals.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout)["code"] == "sigterm_ignored"


def test_a_hook_that_sets_omp_num_threads_is_named(python: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU: OMP_NUM_THREADS=1 takes nothing away")
    answer = run(python, "threads", OMP_NUM_THREADS="1")
    assert answer["code"] == "omp_num_threads"
    assert "nproc says 1 because OMP_NUM_THREADS=1" in answer["message"]


def test_a_limit_of_processes_that_is_too_small_is_named(common: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to become another uid")
    probes = shutil.copytree(PROBES, common / "probes")
    done = subprocess.run(
        ["prlimit", "--nproc=40", "setpriv", "--reuid", "1000700000", "--clear-groups",
         "/usr/bin/python3", str(probes / "threads.py")],
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    assert answer["code"] == "pids_limit"
    assert "limit on processes and threads is 40" in answer["message"]
