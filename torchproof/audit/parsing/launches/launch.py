"""A launch: one container (or job step) as a recipe starts it, whatever starts it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from torchproof.audit.parsing.shell import parse_shell
from torchproof.audit.parsing.shell_command import Command
from torchproof.audit.parsing.words import option_values

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
ALL = -1
"""A number of GPUs: every one of the host."""
UNKNOWN_SIZE = -1
"""A size that a variable holds."""


class Starter(StrEnum):
    """What starts the container."""

    DOCKER = "docker"
    COMPOSE = "compose"
    KUBERNETES = "Kubernetes"
    SLURM = "Slurm"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One container as it is started. `what` names it for a reader, `where` is `file:line`.

    `gpus` is a number, `ALL`, or None where none are requested. `shm` is bytes of /dev/shm,
    `UNKNOWN_SIZE`, or None for the default of 64 MiB. `user` is as written, "" for the image's own.
    `commands` are what runs inside, `shell` whether a shell starts them.
    """

    starter: Starter
    what: str
    where: str
    image: str = ""
    gpus: int | None = None
    shm: int | None = None
    shm_where: str = ""
    shm_on_disk: bool = False
    host_ipc: bool = False
    host_network: bool = False
    user: str = ""
    passwd: bool = False
    read_only: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[Command, ...] = ()
    shell: bool = False
    init: bool = False
    rdma: str = ""
    """What asks for RDMA (`/dev/infiniband`, `rdma/hca`); "" if nothing does."""
    locks_memory: bool = False
    devices: tuple[str, ...] = ()
    tasks: int = 1
    """Copies of the command on each node."""

    @property
    def ranks(self) -> int | None:
        """Processes that a launcher starts on each node; None if no launcher says a number."""
        counts = [count for command in self.commands if (count := rank_count(command))]
        return max(counts) * self.tasks if counts else None


def size(text: str) -> int:
    """Read a size as Docker, Compose and Kubernetes write it (`8g`, `8gb`, `8Gi`, bytes).

    Returns `UNKNOWN_SIZE` for a variable or anything else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgtKMGT]?)(i?)[bB]?\s*", text)
    if match is None:
        return UNKNOWN_SIZE
    unit = match[2].lower()
    kubernetes = match[2].isupper() and not match[3] and not text.lower().strip().endswith("b")
    return int(float(match[1]) * (_DECIMAL[unit] if kubernetes else _UNITS[unit]))


def options(words: Sequence[str], valued: frozenset[str]) -> tuple[list[tuple[str, str]], int]:
    """Split options from what follows them: (name, value) pairs, and the index of the first word.

    Long options may be `--a b` or `--a=b`; short ones of one letter `-a b`, `-ab` or grouped.
    """
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        at += 1
        if word == "--":
            break
        name, given, value = word.partition("=")
        if not word.startswith("--") and len(word) > 2 and not given:
            name, value = _short(word, valued)
            given = value
        if not given and name in valued and at < len(words):
            value = words[at]
            at += 1
        found.append((name, value))
    return found, at


def _short(word: str, valued: frozenset[str]) -> tuple[str, str]:
    """Read grouped short options: the last one that takes a value decides (`-itu`, `-v/a:/b`)."""
    for index, letter in enumerate(word[1:], start=1):
        if f"-{letter}" in valued:
            return f"-{letter}", word[index + 1 :]
    return word, ""


def inside(words: Sequence[str], line: int) -> tuple[tuple[Command, ...], bool]:
    """Return the commands of an exec-form command, and whether a shell runs them."""
    text = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
    found = parse_shell(text, line)
    shell = bool(found) and found[0].name in ("sh", "bash", "dash", "ash", "zsh")
    return found, shell and len(found) > 1


def rank_count(command: Command) -> int | None:
    """Return the number of processes that a launcher starts on a node; None if it says none."""
    names = {
        "torchrun": ("--nproc-per-node", "--nproc_per_node"),
        "accelerate": ("--num_processes", "--num-processes"),
        "deepspeed": ("--num_gpus", "--num-gpus"),
        "mpirun": ("-np", "-n", "--np", "-c"),
    }
    words = launcher_words(command)
    if words is None:
        return None
    wanted = names[words[0]]
    counts = [int(text) for text in option_values(words, *wanted) if text.isdigit()]
    return counts[0] if counts else None


def launcher_words(command: Command) -> tuple[str, ...] | None:
    """Return the words of a launcher with its plain name first; None for any other command."""
    words = command.words
    name = command.name
    if re.fullmatch(r"python[\d.]*", name) and "-m" in words[:4]:
        at = words.index("-m")
        module = words[at + 1] if at + 1 < len(words) else ""
        if module in ("torch.distributed.run", "torch.distributed.launch"):
            return ("torchrun", *words[at + 2 :])
        if module == "accelerate.commands.launch":
            return ("accelerate", *words[at + 2 :])
        return None
    if name in ("torchrun", "accelerate", "deepspeed", "mpirun"):
        return (name, *words[1:])
    for index, word in enumerate(words[1:], start=1):
        if name in ("srun", "uv", "conda", "poetry") and word.rsplit("/", maxsplit=1)[-1] in (
            "torchrun",
            "accelerate",
            "deepspeed",
        ):
            return (word.rsplit("/", maxsplit=1)[-1], *words[index + 1 :])
    return None
