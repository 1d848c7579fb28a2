"""The `venv` engine: each cell a virtual environment on this machine. No images are built.

uv hard-links the wheels' files from its cache, so that cells which share wheels share disk too.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import Distribution, distributions
from pathlib import Path

from filelock import FileLock
from packaging.utils import canonicalize_name
from packaging.version import Version
from uv import find_uv_bin

from torchproof._process import RunResult, run_command, run_logged, stop_all
from torchproof.engines.engine import RunSpec
from torchproof.engines.installer import index_urls, install_environment, install_failure
from torchproof.engines.nvml import read_gpus, visible
from torchproof.errors import CellError, HostError
from torchproof.image.dockerfile import requirements
from torchproof.image.layers import Layer, Plan, make_plan
from torchproof.index.indexes import Indexes
from torchproof.model.lock import WHEELHOUSE, Lock
from torchproof.model.platforms import machine_of
from torchproof.model.results import Built, Host, ImageLayer, SubjectKind

MARKER = "torchproof.json"
"""Written last: an environment without it is not finished."""
_DROPPED = ("PYTHON", "LD_", "UV_", "PIP_", "VIRTUAL_ENV", "CONDA_", "TORCH", "CUDA_")
"""Variables that would make a probe prove something else than the environment."""


class VenvEngine:
    """Builds cells as virtual environments in a folder, and runs commands in them."""

    name = "venv"
    copies = 1
    """Hard links: the cache's files are the environment's."""
    parallel = True

    def __init__(self, folder: Path, indexes: Indexes) -> None:
        self._folder = folder
        self._indexes = indexes

    def host(self) -> Host:
        """Describe this machine; only the GPUs that CUDA_VISIBLE_DEVICES leaves."""
        driver, gpus = read_gpus()
        return Host(engine=self.name, driver=driver, gpus=visible(gpus))

    def find(self, lock: Lock) -> Built | None:
        """Return the environment of an earlier build if all its files are there, in their size."""
        started = time.monotonic()
        plan = make_plan(lock)
        place = self._place(plan)
        try:
            marker = json.loads((place / MARKER).read_text(encoding="utf-8"))
            layers = tuple(ImageLayer(**layer) for layer in marker["layers"])
            whole = marker["plan"] == plan.hash and layers == _layers(place, plan)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return _built(lock, plan, place, layers, started, reused=True) if whole else None

    def build(self, lock: Lock, *, folder: Path, log: Path) -> Built:
        """Install the cell, one layer after the other; uv keeps the downloads of an earlier try.

        Raises CellError, IntegrityError, IndexUnreachableError, HostError.
        """
        del folder
        started = time.monotonic()
        plan = make_plan(lock)
        place = self._place(plan)
        python = _interpreter(lock)
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{place}.lock"):
            if found := self.find(lock):
                return found
            if place.exists():
                shutil.rmtree(place)
            self._create(place, python, lock, log)
            for layer in plan.layers:
                if layer.wheels:
                    self._install(place, layer, lock, log)
            try:
                layers = _layers(place, plan)
            except OSError as error:
                raise CellError(
                    f"{lock.cell}: two wheels overwrite each other's files: {error}",
                    fix="override the version of one of them, and lock the cell again",
                ) from error
            marker = {"plan": plan.hash, "cell": lock.cell, "layers": [*map(asdict, layers)]}
            (place / MARKER).write_text(json.dumps(marker, indent=1), encoding="utf-8")
        return _built(lock, plan, place, layers, started, reused=False)

    def run(self, built: Built, spec: RunSpec) -> RunResult:
        """Run a command with the environment's programs first on PATH.

        There are no mounts here: a word that names a place inside a mount becomes the place on
        this machine. `user` and `shm_size` are the machine's own.
        """
        with tempfile.TemporaryDirectory(prefix="torchproof-home-") as home:
            env = _environment(Path(built.ref), Path(home))
            env |= {name: _outside(value, spec.mounts) for name, value in spec.env.items()}
            env["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpus)
            command = [_outside(word, spec.mounts) for word in spec.command]
            return run_command(command, env=env, timeout=spec.timeout, cwd=Path(home))

    def stop(self) -> None:
        """Stop the installers that run now."""
        stop_all()

    def free_bytes(self) -> int:
        """Return the bytes free where the environments are."""
        place = self._folder
        while not place.exists():
            place = place.parent
        return shutil.disk_usage(place).free

    def _place(self, plan: Plan) -> Path:
        return self._folder / plan.hash.removeprefix("sha256:")[:24]

    def _create(self, place: Path, python: str, lock: Lock, log: Path) -> None:
        """Make the environment as an image's is made: with pip, and setuptools before 3.12.

        torch.compile imports setuptools, which torch asks for only where Python brings none.
        """
        code, output = run_logged(
            [python, "-m", "venv", str(place)],
            env=install_environment(index_urls(lock, self._indexes), os.environ),
            cwd=self._folder,
            log=log,
            title=f"venv {place}",
        )
        if code != 0:
            last = output.strip().splitlines()[-1:] or [f"exit code {code}"]
            raise HostError(
                f"{lock.cell}: {python} cannot make a virtual environment: {last[0]}",
                fix=f"install python{lock.python}-venv, or build images: --engine docker",
            )

    def _install(self, place: Path, layer: Layer, lock: Lock, log: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="torchproof-") as folder:
            file = Path(folder) / f"{layer.name}.txt"
            file.write_text(requirements(layer.wheels), encoding="utf-8")
            command = ["pip", "install", f"--python={place}", "--compile-bytecode", "--no-deps"]
            command += ["--require-hashes", f"--requirements={file}"]
            if any(wheel.index == WHEELHOUSE for wheel in layer.wheels):
                command += [f"--find-links={house}" for house in self._indexes.wheelhouses]
            self._uv(command, lock, log)

    def _uv(self, arguments: list[str], lock: Lock, log: Path) -> None:
        urls = index_urls(lock, self._indexes)
        code, output = run_logged(
            [find_uv_bin(), *arguments, "--no-progress"],
            env=install_environment(urls, os.environ),
            cwd=self._folder,
            log=log,
            title=f"uv {' '.join(arguments)}",
        )
        if code != 0:
            raise install_failure(lock, output)


def _interpreter(lock: Lock) -> str:
    """Return the path of the cell's Python. Raises HostError if it cannot run here."""
    machine = machine_of(lock.platform)
    if platform.machine() != machine:
        raise HostError(
            f"{lock.cell} is for {lock.platform}, this machine is {platform.machine()}",
            fix="build it on such a machine, or as an image: --engine docker",
        )
    found = subprocess.run(
        [
            *(find_uv_bin(), "python", "find", "--no-config", "--no-project", "--system"),
            *("--no-python-downloads", lock.python),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode != 0:
        raise HostError(
            f"{lock.cell}: this machine has no Python {lock.python}",
            fix=f"install python{lock.python}, or build images: --engine docker",
        )
    return found.stdout.strip()


def _environment(place: Path, home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    return kept | {
        "PATH": f"{place / 'bin'}:{os.environ.get('PATH', os.defpath)}",
        "VIRTUAL_ENV": str(place),
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "TRITON_CACHE_DIR": str(home / ".cache/triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(home / ".cache/inductor"),
    }


def _outside(word: str, mounts: Mapping[Path, str]) -> str:
    for path, inside in mounts.items():
        if word == inside or word.startswith(inside.rstrip("/") + "/"):
            return str(path.resolve()) + word[len(inside.rstrip("/")) :]
    return word


def _layers(place: Path, plan: Plan) -> tuple[ImageLayer, ...]:
    """Read what is installed, a layer each. Raises OSError for a file that is gone or changed."""
    site = next(place.glob("lib/python3*/site-packages"), place)
    installed = {canonicalize_name(dist.name): dist for dist in distributions(path=[str(site)])}
    layers = []
    for layer in filter(lambda layer: layer.wheels, plan.layers):
        digest, size = hashlib.sha256(), 0
        for wheel in layer.wheels:
            for line, count in _records(
                site, installed.get(canonicalize_name(wheel.name)), wheel.version
            ):
                digest.update(line.encode())
                size += count
        name = f"sha256:{digest.hexdigest()}"
        layers.append(ImageLayer(name=layer.name, digest=name, size=size))
    return tuple(layers)


def _records(site: Path, dist: Distribution | None, version: str) -> Iterator[tuple[str, int]]:
    """Yield path and hash of every installed file with its size, as its RECORD promises them."""
    if dist is None or Version(dist.version) != Version(version):
        raise FileNotFoundError(site)
    for file in dist.files or ():
        if file.hash is None:
            continue
        size = (site / str(file)).stat().st_size
        if file.size is not None and size != file.size:
            raise FileNotFoundError(file)
        yield f"{file} {file.hash.value}\n", size


def _built(
    lock: Lock,
    plan: Plan,
    place: Path,
    layers: tuple[ImageLayer, ...],
    started: float,
    *,
    reused: bool,
) -> Built:
    content = "\n".join(f"{layer.name} {layer.digest}" for layer in layers)
    return Built(
        cell=lock.cell,
        subject=SubjectKind.ENVIRONMENT,
        ref=str(place),
        digest=f"sha256:{hashlib.sha256(content.encode()).hexdigest()}",
        size=sum(layer.size for layer in layers),
        layers=layers,
        plan_hash=plan.hash,
        seconds=time.monotonic() - started,
        reused=reused,
    )
