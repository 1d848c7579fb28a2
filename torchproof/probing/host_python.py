"""The present machine and a Python on it, as something that probes run on (`--target host`).

For a Slurm node, an NGC container, or any machine with GPUs and without a container engine.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

from torchproof._process import RunResult, run_command
from torchproof.engines.engine import RunSpec
from torchproof.engines.nvml import read_gpus, visible
from torchproof.errors import CellError, HostError
from torchproof.model.results import Built, Host, SubjectKind

DESCRIBE = """
import importlib.metadata, json, sys
names = sorted({f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions()})
import torch
print(json.dumps({"torch": torch.__version__, "git": torch.version.git_version,
                  "cuda": torch.version.cuda, "python": sys.version.split()[0],
                  "distributions": names}))
"""
"""Run in the Python on trial: what its evidence is bound to."""


_described: dict[Path, Built] = {}
"""Asked once a process: importing torch takes seconds."""


class HostPython:
    """Runs commands with one Python of this machine; `python` in a command means that one."""

    name = "host"

    def __init__(self, python: Path | None = None) -> None:
        self.python = python or Path(sys.executable)

    def host(self) -> Host:
        """Describe this machine; only the GPUs that CUDA_VISIBLE_DEVICES leaves."""
        driver, gpus = read_gpus()
        return Host(engine="host", driver=driver, gpus=visible(gpus))

    def describe(self) -> Built:
        """Return the environment on trial, named by what is installed in it.

        Raises CellError when its torch does not import, HostError when there is no such Python.
        """
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        if (known := _described.get(self.python)) is not None:
            return known
        asked = run_command([str(self.python), "-c", DESCRIBE], env=env, timeout=300)
        lines = asked.stdout.strip().splitlines()
        if asked.exit_code != 0 or not lines:
            words = asked.stderr.strip().splitlines()
            raise CellError(
                f"`import torch` fails in {self.python}: {words[-1] if words else 'no output'}",
                fix="name a Python that has torch: --python PATH",
            )
        facts = json.loads(lines[-1])
        cuda = f"cu{facts['cuda'].replace('.', '')}" if facts["cuda"] else "cpu"
        minor = "".join(facts["python"].split(".")[:2])
        installed = json.dumps([facts["git"], facts["distributions"]]).encode()
        _described[self.python] = Built(
            cell=f"{facts['torch'].split('+')[0]}-{cuda}-py{minor}",
            subject=SubjectKind.ENVIRONMENT,
            ref=f"python {facts['python']}",
            digest="sha256:" + hashlib.sha256(installed).hexdigest(),
            size=0,
            layers=(),
            plan_hash="",
            seconds=0.0,
            reused=True,
        )
        return _described[self.python]

    def run(self, built: Built, spec: RunSpec) -> RunResult:
        """Run one command here; shm size, user and mounts are the machine's own.

        Raises HostError when the command cannot be started.
        """
        command = list(spec.command)
        if command[0] == "python":
            command[0] = str(self.python)
        env = {**os.environ, **spec.env}
        folder = str(self.python.parent)
        path = env.get("PATH", os.defpath)
        if folder not in path.split(os.pathsep):
            env["PATH"] = f"{folder}{os.pathsep}{path}"
        env["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpus)
        if not Path(command[0]).exists():
            raise HostError(f"no such Python: {command[0]}")
        return run_command(command, env=env, timeout=spec.timeout)
