"""Probes as Slurm starts them: one process on each of two nodes, merged into one report."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.needs import needs
from torchproof.engines.venv import VenvEngine
from torchproof.model.lock import Lock
from torchproof.model.results import Built

pytestmark = needs("slurm")

ROOT = Path(__file__).parents[3]
ENVIRON = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
PROBES = "rendezvous,threads"


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody holds now."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]


def configuration(folder: Path) -> str:
    """Write a cluster of two nodes on loopback, its state in `folder`."""
    control, *nodes = free_ports(3)
    for name in ("state", "n1", "n2"):
        (folder / name).mkdir()
    lines = [
        "ClusterName=torchproof",
        "SlurmctldHost=localhost(127.0.0.1)",
        f"SlurmctldPort={control}",
        f"SlurmUser={getpass.getuser()}",
        f"SlurmdUser={getpass.getuser()}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge/socket",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "ReturnToService=2",
        "MpiDefault=none",
    ]
    for name, port in zip(("n1", "n2"), nodes, strict=True):
        lines.append(
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2"
        )
    lines.append("PartitionName=all Nodes=n1,n2 Default=YES State=UP OverSubscribe=YES")
    return "\n".join(lines) + "\n"


@pytest.fixture
def cluster() -> Iterator[dict[str, str]]:
    """Start the daemons; yield the environment of their clients."""
    folder = Path(tempfile.mkdtemp(prefix="torchproof-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    munge = folder / "munge"
    munge.mkdir()
    munge.chmod(0o755)
    key = munge / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    user = {}
    if os.geteuid() == 0:
        for path in (munge, key):
            shutil.chown(path, "munge", "munge")
        user = {"user": "munge", "group": "munge", "extra_groups": []}
    (folder / "slurm.conf").write_text(configuration(folder))
    environ = {**ENVIRON, "SLURM_CONF": str(folder / "slurm.conf")}
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}/socket"]
    munged += [f"--{name}-file={munge}/{name}" for name in ("pid", "log", "seed")]
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], **more: object) -> None:
        log = (folder / f"{len(started)}.log").open("wb")
        started.append(
            subprocess.Popen(command, env=environ, stdout=log, stderr=log, **more)  # type: ignore[call-overload]
        )

    try:
        start(munged, **user)
        deadline = time.monotonic() + 10
        while not (munge / "socket").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        start(["slurmctld", "-D"])
        for name in ("n1", "n2"):
            start(["slurmd", "-D", "-N", name])
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            states = subprocess.run(
                ["sinfo", "-h", "-N", "-o", "%T"],
                env=environ,
                capture_output=True,
                text=True,
                check=False,
            ).stdout.split()
            if states == ["idle", "idle"]:
                break
            time.sleep(0.5)
        else:
            logs = "\n".join(path.read_text()[-1500:] for path in sorted(folder.glob("*.log")))
            pytest.fail(f"the nodes do not come up: {logs}")
        yield environ
    finally:
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def test_two_nodes_probe_and_merge_into_one_report(
    cluster: dict[str, str], real_environment: tuple[VenvEngine, Built, Lock], tmp_path: Path
) -> None:
    python = Path(real_environment[1].ref) / "bin" / "python"
    build = f"{sys.executable} {ROOT / 'build.py'}"
    probe = f"{build} probe --target host --python {python} --probes {PROBES}"
    reports = f"{tmp_path}/$SLURM_PROCID"
    script = f"{probe} --reports {reports} && echo $SLURMD_NODENAME > {reports}/node"
    asked = subprocess.run(
        ["srun", "-N2", "-n2", "bash", "-c", script],
        env=cluster,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert {(tmp_path / rank / "node").read_text().strip() for rank in "01"} == {"n1", "n2"}
    merged = subprocess.run(
        [
            *(*build.split(), "report", "--reports", str(tmp_path / "merged")),
            *("--from", str(tmp_path / "0"), "--from", str(tmp_path / "1")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert merged.returncode == 0, merged.stdout + merged.stderr
    (cell,) = json.loads((tmp_path / "merged/report.json").read_text())["cells"]
    assert {probe["name"]: probe["outcome"] for probe in cell["probes"]} == {
        "rendezvous": "pass",
        "threads": "pass",
    }
