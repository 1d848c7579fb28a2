"""Which engine serves: the one asked for, or the best one that answers."""

from __future__ import annotations

from pathlib import Path

from torchproof.engines import Engine
from torchproof.engines.venv import VenvEngine
from torchproof.errors import HostError, InputError
from torchproof.index import Indexes, cache_dir

ENGINES = ("auto", "docker", "venv")


def choose(name: str, indexes: Indexes, *, cache: Path | None = None) -> Engine:
    """Return an engine by its name; `auto` is docker if one answers, else venv.

    Raises InputError for an unknown name, HostError if the asked engine does not answer.
    """
    cache = cache or cache_dir()
    match name:
        case "venv":
            return VenvEngine(cache / "envs", indexes)
        case "auto" | "docker":
            raise HostError("docker: not yet")
        case _:
            raise InputError(
                f"there is no engine {name!r}",
                fix=f"one of {', '.join(ENGINES)}",
            )
