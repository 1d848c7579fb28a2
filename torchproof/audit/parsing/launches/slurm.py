"""Slurm batch scripts → launches: what each `srun` starts, with the GPUs that #SBATCH asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from torchproof.audit.facts import TextFile
from torchproof.audit.parsing.launches.launch import ALL, Launch, Starter, launcher_words
from torchproof.audit.parsing.texts import ShellUse, shell_uses
from torchproof.audit.parsing.words import option_values

_GPUS = ("--gpus-per-node", "--gres", "--gpus", "-G", "--gpus-per-task")
_SBATCH = re.compile(r"^#SBATCH\s+(.*?)\s*(?:#.*)?$", re.MULTILINE)
CONTAINER_TOOLS = ("singularity", "apptainer", "enroot")


def directives(text: TextFile) -> dict[str, str]:
    """Return the options of #SBATCH lines by long (or short) name."""
    found: dict[str, str] = {}
    for match in _SBATCH.finditer(text.text):
        words = match[1].split()
        for word, following in zip(words, (*words[1:], ""), strict=False):
            if word.startswith("-"):
                name, given, value = word.partition("=")
                found[name] = value if given else ("" if following.startswith("-") else following)
    return found


def slurm_launches(text: TextFile) -> Iterator[Launch]:
    """Yield the launchers (torchrun, …) and containers that a batch script starts."""
    asked = directives(text)
    uses = shell_uses(text)
    if not asked and not any(use.command.name == "srun" for use in uses):
        return
    for use in uses:
        command = use.command
        is_step = command.name in ("srun", *CONTAINER_TOOLS)
        if is_step or launcher_words(command) is not None:
            yield _launch(text, use, asked)


def _launch(text: TextFile, use: ShellUse, asked: Mapping[str, str]) -> Launch:
    words = use.command.words
    step = dict(asked)
    if use.command.name == "srun":
        for name in (*_GPUS, "--ntasks-per-node", "--ntasks", "-n", "--nodes", "-N"):
            for value in option_values(words, name):
                step[name] = value
    image = next(iter(option_values(words, "--container-image")), "")
    return Launch(
        starter=Starter.SLURM,
        what=f"{use.command.name} in {text.path.rsplit('/', maxsplit=1)[-1]}",
        where=use.where,
        image=image,
        gpus=_gpus(step),
        shm=None,
        host_ipc=True,
        host_network=True,
        env=use.variables,
        commands=(use.command,),
        locks_memory=True,
        tasks=_tasks(step) if use.command.name == "srun" else 1,
    )


def _gpus(step: Mapping[str, str]) -> int | None:
    """Return the GPUs of one node; None where none are requested or a variable decides."""
    tasks = _tasks(step)
    for name in _GPUS:
        value = step.get(name)
        if value is None or (name == "--gres" and "gpu" not in value):
            continue
        number = re.search(r"(?:^|:)(\d+)$", value.split(",")[0])
        if number is None:
            return 1 if name == "--gres" and re.fullmatch(r"gpu(:[a-z]\w*)?", value) else ALL
        count = int(number[1])
        if name == "--gpus-per-task":
            return count * tasks
        if name in ("--gpus", "-G"):
            nodes = step.get("--nodes") or step.get("-N") or "1"
            return count // int(nodes) if nodes.isdigit() and int(nodes) else ALL
        return count
    return None


def _tasks(step: Mapping[str, str]) -> int:
    """Return the tasks that Slurm starts on each node."""
    each = step.get("--ntasks-per-node", "")
    if each.isdigit():
        return int(each)
    total = step.get("--ntasks") or step.get("-n") or "1"
    nodes = step.get("--nodes") or step.get("-N") or "1"
    if total.isdigit() and nodes.isdigit() and int(nodes):
        return max(1, int(total) // int(nodes))
    return 1
