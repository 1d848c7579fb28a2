"""Which engine serves: the one asked for, or the best one that answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import docker
from docker.errors import DockerException

from torchproof.engines import Engine
from torchproof.engines.assembling import AssemblingEngine
from torchproof.engines.docker import DockerEngine
from torchproof.engines.venv import VenvEngine
from torchproof.errors import HostError, InputError
from torchproof.index import Indexes, WheelStore, cache_dir
from torchproof.matrixerrors import did_you_mean

ENGINES = ("auto", "docker", "venv")
BUILDERS = ("docker", "assemble")


def choose(
    name: str, indexes: Indexes, *, builder: str = "docker", cache: Path | None = None
) -> Engine:
    """Return an engine by its name; `auto` is docker if one answers, else venv.

    DOCKER_HOST may point to Podman's socket. The builder `assemble` makes images without the
    engine, which then only runs them; slim images are made so in any case. Raises InputError for
    an unknown name, HostError if the asked engine does not answer.
    """
    _check("engine", name, ENGINES)
    _check("builder", builder, BUILDERS)
    cache = cache or cache_dir()
    docker_engine = _docker(name, cache, indexes) if name != "venv" else None
    engine = docker_engine or VenvEngine(cache / "envs", indexes)
    if docker_engine is None and builder == "docker":
        return engine
    return AssemblingEngine(
        engine=engine,
        loader=docker_engine,
        store=WheelStore(cache, indexes),
        cache=cache,
        slim_only=builder == "docker",
    )


def _check(kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        close = did_you_mean(name, known)
        raise InputError(f"there is no {kind} {name!r}", fix=close or f"one of {', '.join(known)}")


def _docker(name: str, cache: Path, indexes: Indexes) -> DockerEngine | None:
    try:
        return DockerEngine(_connect(), cache, indexes)
    except HostError:
        if name == "docker":
            raise
        return None


def _connect() -> docker.DockerClient:
    try:
        client = docker.from_env(timeout=60)
        client.ping()
    except (DockerException, OSError) as error:
        raise HostError(
            f"no container engine answers: {error}",
            fix="start Docker (or set DOCKER_HOST to Podman's socket), or use --engine venv",
        ) from error
    return client
