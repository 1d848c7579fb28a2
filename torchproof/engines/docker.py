"""The `docker` engine: Docker Engine, or Podman through its Docker-compatible socket.

The SDK asks, runs and inspects; a client program builds, because BuildKit's secrets and cache
mounts need one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import docker
from docker.errors import ImageNotFound
from docker.models.images import Image

from torchproof._http import redact
from torchproof._process import RunResult, run_logged, stop_all
from torchproof.engines.build_client import BuildClient, find_build_client
from torchproof.engines.build_context import (
    build_network,
    check_folder,
    write_context,
    write_secrets,
)
from torchproof.engines.container_options import container_options
from torchproof.engines.containers import engine_faults, run_container, stop_containers, sweep
from torchproof.engines.engine import RunSpec
from torchproof.engines.inspected_image import has_config, name_layers
from torchproof.engines.installer import index_urls, install_failure
from torchproof.engines.nvml import read_gpus
from torchproof.errors import CellError, HostError, TorchproofError
from torchproof.image.bootstrap import ensure_base
from torchproof.image.dockerfile import base_ref, render
from torchproof.image.layers import make_plan
from torchproof.index.indexes import Indexes
from torchproof.model.lock import Lock
from torchproof.model.platforms import find_platform
from torchproof.model.results import Built, Host, SubjectKind

REPOSITORY = "localhost/torchproof/cell"
"""Local images; with `localhost` as the registry, a name can never mean a public image."""
INSTALLER = "localhost/torchproof/installer"
LOAD_TIMEOUT = 3600
"""Seconds that an engine may take to unpack an image."""
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_ENGINE_GONE = re.compile(
    r"Cannot connect to the Docker daemon|error during connect|transport is closing|"
    r"code = Unavailable|connection reset by peer|unable to connect to Podman|closed the connection"
    r"|unexpected EOF\s*$|context canceled"
)
_NO_BASE = re.compile(
    r"pull access denied|failed to (resolve|do request)|failed to copy|initializing source docker"
    r"|manifest (unknown|for .* not found)"
)


class DockerEngine:
    """Builds cells as images of a container engine, and runs commands in containers of them."""

    copies = 2
    """A wheel is stored twice: in the installer's cache in the engine, and in the layer."""

    def __init__(self, client: docker.DockerClient, cache: Path, indexes: Indexes) -> None:
        self._client = client
        self._cache = cache
        self._indexes = indexes
        self._bases = threading.Lock()
        with engine_faults():
            version: Mapping[str, Any] = client.version()
        components = {part["Name"]: part["Version"] for part in version.get("Components", [])}
        self._podman = "Podman Engine" in components
        self.name = "podman" if self._podman else "docker"
        self._version = str(version["Version"])
        sweep(client)

    @property
    def parallel(self) -> bool:
        """Whether builds at the same time share their equal steps."""
        return self._builder.parallel

    def host(self) -> Host:
        """Describe the engine, and this machine's GPUs if the engine is on it."""
        driver, gpus = read_gpus() if self._local else (None, ())
        return Host(engine=f"{self.name} {self._version}", driver=driver, gpus=gpus)

    def find(self, lock: Lock) -> Built | None:
        """Return the cell's image if its configuration is the one that this lock gives."""
        started = time.monotonic()
        with engine_faults():
            try:
                image = self._client.images.get(self._ref(lock))
            except ImageNotFound:
                return None
            if not has_config(image.attrs, lock):
                return None
            return self._built(image, lock, started, reused=True)

    def build(self, lock: Lock, *, folder: Path, log: Path) -> Built:
        """Build the image of a cell from its Dockerfile.

        Raises DriftError if the folder's Dockerfile is not the one that the lock gives, CellError,
        IntegrityError, IndexUnreachableError, HostError.
        """
        started = time.monotonic()
        if lock.gpus:
            raise CellError(
                f"{lock.cell} is a slim image, which a Dockerfile cannot make",
                fix="build it with --builder assemble",
            )
        files = render(lock)
        check_folder(folder, files)
        self._ensure_base(lock, log)
        with tempfile.TemporaryDirectory(prefix="torchproof-build-") as temporary:
            context, secrets = Path(temporary) / "context", Path(temporary) / "secrets"
            write_context(context, files, lock, self._indexes.wheelhouses)
            urls = index_urls(lock, self._indexes)
            commands = self._builder.commands(
                context,
                tag=self._ref(lock),
                installer=f"{INSTALLER}:{base_ref(lock.base, lock.platform).rpartition(':')[2]}",
                platform=None if self._native(lock) else lock.platform,
                network=build_network(urls),
                secrets=write_secrets(secrets, urls),
                build_args=[name for name in _PROXIES if os.environ.get(name)],
            )
            for command in commands:
                code, output = run_logged(
                    command,
                    env={**os.environ, **self._builder.env},
                    cwd=context,
                    log=log,
                    title=f"build {lock.cell}",
                )
                if code != 0:
                    raise self._failure(lock, output)
        with engine_faults():
            image = self._client.images.get(self._ref(lock))
            return self._built(image, lock, started, reused=False)

    def run(self, built: Built, spec: RunSpec) -> RunResult:
        """Run one command in a new container, which is always removed, also on Ctrl-C."""
        options = container_options(spec, podman=self._podman, info=lambda: self._info)
        return run_container(self._client, built.digest, spec, options)

    def load(self, image_id: str, archive: Iterable[bytes]) -> None:
        """Load an image from Docker's tar archive, unless the engine already has that id."""
        with engine_faults():
            try:
                self._client.images.get(image_id)
            except ImageNotFound:
                patient = docker.from_env(timeout=LOAD_TIMEOUT)
                # An iterable may be posted too: the archive is never whole in memory.
                patient.images.load(archive)  # type: ignore[arg-type]
                patient.close()

    def stop(self) -> None:
        """Stop the builds and remove the containers that this process runs now."""
        stop_all()
        stop_containers(self._client)

    def free_bytes(self) -> int:
        """Return the free bytes where the engine keeps images; a huge number if not known."""
        root = Path(self._info.get("DockerRootDir") or "/nowhere")
        return shutil.disk_usage(root).free if self._local and root.exists() else 2**62

    @cached_property
    def _info(self) -> Mapping[str, Any]:
        with engine_faults():
            return self._client.info()

    @cached_property
    def _local(self) -> bool:
        address = os.environ.get("DOCKER_HOST", "")
        return not address or address.startswith(("unix://", "http+unix://", "/"))

    @cached_property
    def _builder(self) -> BuildClient:
        return find_build_client(podman=self._podman, address=os.environ.get("DOCKER_HOST"))

    def _native(self, lock: Lock) -> bool:
        platform = find_platform(str(self._info.get("Architecture")))
        return platform is not None and platform.name == lock.platform

    def _ref(self, lock: Lock) -> str:
        return f"{REPOSITORY}:{lock.cell}"

    def _ensure_base(self, lock: Lock, log: Path) -> None:
        if not lock.base.bootstrap:
            return
        reference = base_ref(lock.base, lock.platform)
        with self._bases, engine_faults():
            with contextlib.suppress(ImageNotFound):
                self._client.images.get(reference)
                return
            tar = ensure_base(lock.base, lock.platform, cache=self._cache, log=log)
            # Podman reads the repository only, and takes the tag from it.
            self._client.api.import_image_from_file(str(tar), repository=reference)

    def _built(self, image: Image, lock: Lock, started: float, *, reused: bool) -> Built:
        plan = make_plan(lock)
        return Built(
            cell=lock.cell,
            subject=SubjectKind.IMAGE,
            ref=self._ref(lock),
            digest=str(image.id),
            size=int(image.attrs["Size"]),
            layers=name_layers(image.attrs["RootFS"]["Layers"], image.history(), plan),
            plan_hash=plan.hash,
            seconds=time.monotonic() - started,
            reused=reused,
        )

    def _failure(self, lock: Lock, output: str) -> TorchproofError:
        if _ENGINE_GONE.search(output):
            return HostError(
                f"{lock.cell}: the container engine went away during the build",
                fix="check that it runs (`docker version`), run again: finished steps are kept",
            )
        if f"python{lock.python}: not found" in output:
            return CellError(
                f"{lock.cell}: the base has no python{lock.python}",
                fix="use a base that has it, or another `python:` for this cell",
            )
        if _NO_BASE.search(output):
            line = next(line for line in output.splitlines() if _NO_BASE.search(line))
            return HostError(
                f"{lock.cell}: the base {base_ref(lock.base, lock.platform)} cannot be pulled: "
                f"{redact(line.strip())}",
                fix="check the registry and its login, or use `bootstrap:` as the base",
            )
        return install_failure(lock, output)
