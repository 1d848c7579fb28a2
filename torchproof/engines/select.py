"""Which engine serves: the one asked for, or the best one that answers."""

from __future__ import annotations

import difflib
from pathlib import Path

import docker
from docker.errors import DockerException

from torchproof.engines import Engine
from torchproof.engines.docker import DockerEngine
from torchproof.engines.venv import VenvEngine
from torchproof.errors import HostError, InputError
from torchproof.index import Indexes, cache_dir

ENGINES = ("auto", "docker", "venv")


def choose(name: str, indexes: Indexes, *, cache: Path | None = None) -> Engine:
    """Return an engine by its name; `auto` is docker if one answers, else venv.

    DOCKER_HOST may point to Podman's socket. Raises InputError for an unknown name, HostError if
    the asked engine does not answer.
    """
    cache = cache or cache_dir()
    match name:
        case "venv":
            return VenvEngine(cache / "envs", indexes)
        case "docker":
            return DockerEngine(_connect(), cache, indexes)
        case "auto":
            try:
                return DockerEngine(_connect(), cache, indexes)
            except HostError:
                return VenvEngine(cache / "envs", indexes)
        case _:
            near = difflib.get_close_matches(name, ENGINES, n=1)
            raise InputError(
                f"there is no engine {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
                fix=f"one of {', '.join(ENGINES)}",
            )


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
