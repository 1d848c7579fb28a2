"""The contract of an engine, which `docker.py`, `venv.py` and `assembling.py` fulfil.

An engine is an edge: it does I/O, and raises `HostError` for faults of the machine and `CellError`
for faults of the cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torchproof._process import RunResult
    from torchproof.model.lock import Lock
    from torchproof.model.results import Built, Host


ENGINES = ("auto", "docker", "venv")
"""What `--engine` takes; `select.py` says what `auto` chooses."""
BUILDERS = ("docker", "assemble")
"""What `--builder` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One command inside a built cell.

    `gpus` are the ids the command may see (UUIDs or indexes), `shm_size` is bytes, `user` is
    `uid:gid` or None for the image's own, `mounts` maps host paths to read-only paths inside,
    `timeout` is seconds.
    """

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    shm_size: int = 8 * 1024**3
    user: str | None = None
    mounts: Mapping[Path, str] = field(default_factory=dict)
    timeout: float = 300.0
    name: str = "torchproof"
    entrypoint: bool = True
    """Run through the image's own entrypoint (if it has one)."""


class Engine(Protocol):
    """Builds cells and runs commands in what it built."""

    @property
    def name(self) -> str:
        """What users call it: `docker`, `podman`, `venv`."""
        ...

    @property
    def copies(self) -> int:
        """How many copies of the unpacked wheels are on disk, the installer's cache included."""
        ...

    @property
    def parallel(self) -> bool:
        """Whether builds at the same time share their equal steps."""
        ...

    def host(self) -> Host:
        """Describe the machine as the engine sees it (driver, GPUs, engine version)."""
        ...

    def find(self, lock: Lock) -> Built | None:
        """Return what an earlier build of an equal lock left, if it is still whole."""
        ...

    def build(self, lock: Lock, *, folder: Path, log: Path) -> Built:
        """Build a cell; `folder` holds its Dockerfile, `log` takes the full output."""
        ...

    def run(self, built: Built, spec: RunSpec) -> RunResult:
        """Run one command in a built cell; stops and removes what it started, also on Ctrl-C."""
        ...

    def stop(self) -> None:
        """Stop what this process runs through the engine now; safe from any thread."""
        ...

    def free_bytes(self) -> int:
        """Return the bytes free where the engine stores what it builds."""
        ...
