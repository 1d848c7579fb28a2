"""Containers that an engine runs: started, timed, read, and always removed.

Each carries labels that name who started it, so that a later run can remove what a killed one left.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container

from torchproof._process import RunResult
from torchproof.engines.engine import RunSpec
from torchproof.errors import CellError, HostError

OWNER_LABEL = "torchproof.owner"
_KEEP = 4 * 1024 * 1024
"""Bytes of each output stream that are kept: the end."""
_GRACE = 2.0
"""Seconds that a command has after SIGABRT to write where it hangs."""
_running: set[str] = set()
_lock = threading.Lock()


def connect() -> docker.DockerClient:
    """Return a client of the engine that DOCKER_HOST names. Raise HostError if none answers."""
    try:
        client = docker.from_env(timeout=60)
        client.ping()
    except (DockerException, OSError) as error:
        raise HostError(
            f"no container engine answers: {error}",
            fix="start Docker (or set DOCKER_HOST to Podman's socket), or use --engine venv",
        ) from error
    return client


@contextmanager
def engine_faults() -> Iterator[None]:
    """Turn an engine that does not answer, or refuses, into HostError."""
    try:
        yield
    except ImageNotFound as error:
        raise HostError(f"the image is gone: {error.explanation}", fix="build it again") from error
    except (DockerException, requests.RequestException, OSError) as error:
        explanation = getattr(error, "explanation", None) or error
        raise HostError(
            f"the container engine does not answer or refuses: {explanation}",
            fix="check that it runs (`docker version`), run again: finished cells are kept",
        ) from error


def run_container(
    client: docker.DockerClient, image: str, spec: RunSpec, options: Mapping[str, Any]
) -> RunResult:
    """Run one command in a new container and remove it, whatever happens.

    `options` are the engine's own (GPUs, logging). Raises HostError for faults of the engine,
    CellError if the image has no such command.
    """
    started = time.monotonic()
    with engine_faults():
        container = _create(client, image, spec, options)
    with _lock:
        _running.add(str(container.id))
    try:
        with engine_faults():
            _start(container, spec)
            code = _wait(container, spec.timeout)
            return RunResult(
                exit_code=code,
                stdout=_output(container, stdout=True, stderr=False),
                stderr=_output(container, stdout=False, stderr=True),
                seconds=time.monotonic() - started,
            )
    finally:
        with contextlib.suppress(DockerException, requests.RequestException, OSError):
            container.remove(force=True, v=True)
        with _lock:
            _running.discard(str(container.id))


def stop_containers(client: docker.DockerClient) -> None:
    """Remove the containers that this process runs now."""
    with _lock:
        running = list(_running)
    for name in running:
        with contextlib.suppress(DockerException, requests.RequestException, OSError):
            client.api.remove_container(name, force=True, v=True)


def sweep(client: docker.DockerClient) -> None:
    """Remove the containers of runs on this machine that were killed before they could do so."""
    with engine_faults():
        for container in client.containers.list(
            all=True, filters={"label": OWNER_LABEL}, ignore_removed=True
        ):
            with contextlib.suppress(NotFound, APIError):
                if _dead(container.labels[OWNER_LABEL]):
                    container.remove(force=True, v=True)


def _create(
    client: docker.DockerClient, image: str, spec: RunSpec, options: Mapping[str, Any]
) -> Container:
    volumes = {
        str(path.resolve()): {"bind": inside, "mode": "ro"} for path, inside in spec.mounts.items()
    }
    env = dict(spec.env)
    if not spec.gpus:
        # Where NVIDIA's runtime is the default one, the image's own `all` would give every GPU.
        env["NVIDIA_VISIBLE_DEVICES"] = "void"
    extra: dict[str, Any] = {} if spec.entrypoint else {"entrypoint": ""}
    options = {
        "environment": env,
        "user": spec.user,
        "shm_size": spec.shm_size,
        "volumes": volumes,
        "labels": {OWNER_LABEL: _owner(), "torchproof.run": spec.name},
        **extra,
        **options,
    }
    try:
        return client.containers.create(image, list(spec.command), init=True, **options)
    except APIError as error:
        # Podman without catatonit: the command itself is then the first process.
        if "init binary not found" not in str(error.explanation):
            raise
        return client.containers.create(image, list(spec.command), **options)


def _start(container: Container, spec: RunSpec) -> None:
    try:
        container.start()
    except APIError as error:
        text = str(error.explanation)
        if "not found in $PATH" in text or "no such file" in text:
            raise CellError(
                f"the image has no program {spec.command[0]}", fix="read the log of its build"
            ) from error
        raise


def _wait(container: Container, timeout: float) -> int | None:
    """Return the exit code (`-n` for signal n), None for a timeout."""
    try:
        code = int(container.wait(timeout=timeout)["StatusCode"])
    except (requests.exceptions.ReadTimeout, requests.exceptions.ConnectionError) as error:
        if "timed out" not in str(error).lower():
            raise
        with contextlib.suppress(APIError):
            container.kill(signal="SIGABRT")
            time.sleep(_GRACE)
            container.kill()
        return None
    return 128 - code if 128 < code <= 192 else code


def _output(container: Container, *, stdout: bool, stderr: bool) -> str:
    kept = bytearray()
    for chunk in container.logs(stdout=stdout, stderr=stderr, stream=True, follow=False):
        kept += chunk
        if len(kept) > 2 * _KEEP:
            del kept[:-_KEEP]
    return bytes(kept[-_KEEP:]).decode(errors="replace")


def _owner() -> str:
    """Name this process: machine, namespace of process ids, process id, its start."""
    return f"{_machine()}:{os.getpid()}:{_start_time(os.getpid())}"


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return "unknown"


def _start_time(pid: int) -> str:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return status.rpartition(")")[2].split()[19]


def _dead(owner: str) -> bool:
    machine, _, rest = owner.rpartition(":")
    machine, _, pid = machine.rpartition(":")
    return machine == _machine() and pid.isdigit() and _start_time(int(pid)) != rest
