"""Which engine to use: the requested one, or the best one that answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchproof.assemble.target import in_registry
from torchproof.engines.assembling import LAYOUTS, AssemblingEngine
from torchproof.engines.engine import BUILDERS, ENGINES, Engine
from torchproof.engines.venv import VenvEngine
from torchproof.errors import HostError, InputError, did_you_mean
from torchproof.index.indexes import Indexes, cache_dir
from torchproof.index.wheel_store import WheelStore
from torchproof.registry import Reference

if TYPE_CHECKING:
    from torchproof.engines.docker import DockerEngine


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


def assembler(name: str, indexes: Indexes, to: str | None) -> AssemblingEngine:
    """Return what assembles images and runs none: whatever engine is named, it is not needed.

    `to` is a folder for the cells' layouts (their usual place if None) or `REGISTRY/REPOSITORY`.
    Raises InputError for an unknown engine, and for a `to` that is neither.
    """
    _check("engine", name, ENGINES)
    cache = cache_dir()
    remote = to is not None and in_registry(to)
    reference = Reference.parse(to) if to and remote else None
    if reference and (reference.tag or reference.digest):
        raise InputError(
            f"--to {to} names one image; each cell gets its own name as the tag",
            fix="leave the tag out: REGISTRY/REPOSITORY",
        )
    return AssemblingEngine(
        engine=VenvEngine(cache / "envs", indexes),
        loader=None,
        store=WheelStore(cache, indexes),
        cache=cache,
        slim_only=False,
        layouts=Path(to) if to and not remote else LAYOUTS,
        repository=to if remote else None,
    )


def _check(kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        close = did_you_mean(name, known)
        raise InputError(f"there is no {kind} {name!r}", fix=close or f"one of {', '.join(known)}")


def _docker(name: str, cache: Path, indexes: Indexes) -> DockerEngine | None:
    # Docker's client takes longer to import than much of what is done without an engine.
    from torchproof.engines.containers import connect  # noqa: PLC0415
    from torchproof.engines.docker import DockerEngine  # noqa: PLC0415

    try:
        return DockerEngine(connect(), cache, indexes)
    except HostError:
        if name == "docker":
            raise
        return None
