"""Family `order`: Dockerfile steps in the wrong order: rebuilt each night, or undone by a COPY."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from torchproof.audit.facts import ImageFacts
from torchproof.audit.parsing.dockerfile import Instruction, Stage
from torchproof.audit.parsing.find_installs import installs
from torchproof.audit.parsing.install_request import Install
from torchproof.audit.parsing.shell_command import Command
from torchproof.audit.parsing.stages import stages
from torchproof.audit.parsing.texts import run_commands
from torchproof.audit.parsing.words import expand
from torchproof.audit.rule import Rule, rules_of
from torchproof.model.results import Finding

VOLATILE = re.compile(
    r"(^|_)(DATE|TIMESTAMP|TIME|SHA|SHA1|COMMIT|REVISION|VCS_REF|GIT_REF|BUILD_ID|BUILD_NUMBER|"
    r"BUILD_TAG|RUN_ID|RUN_NUMBER|JOB_ID|CACHE_?BUST|CACHEBUSTER|EPOCH|GIT_HASH|GIT_VERSION|HASH|"
    r"PIPELINE_ID)($|_)",
    re.IGNORECASE,
)
NOT_VOLATILE = re.compile(r"SHA256|SOURCE_DATE_EPOCH|(PYTHON|TORCH|NCCL|CUDA|CUDNN|WHEEL)", re.I)
CONTEXT_FILES = re.compile(
    r"^(pyproject\.toml|uv\.lock|poetry\.lock|pdm\.lock|Pipfile(\.lock)?|setup\.(py|cfg)|"
    r"requirements[\w.-]*\.txt|constraints?[\w.-]*\.txt|environment[\w.-]*\.ya?ml|uv\.toml|pylock[\w.]*)$"
)
"""Files that a project's folder is sure to hold."""
_LOCK_COMMANDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("uv", "add"): ("pyproject.toml", "uv.lock"),
    ("uv", "remove"): ("pyproject.toml", "uv.lock"),
    ("uv", "lock"): ("uv.lock",),
    ("poetry", "add"): ("pyproject.toml", "poetry.lock"),
    ("poetry", "remove"): ("pyproject.toml", "poetry.lock"),
    ("poetry", "lock"): ("poetry.lock",),
    ("pdm", "add"): ("pyproject.toml", "pdm.lock"),
    ("pdm", "lock"): ("pdm.lock",),
}


def volatile_above_heavy(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find what differs in every build and comes before a step that downloads gigabytes."""
    for path, stage in stages(facts):
        heavy = {
            install.use.command.line: install
            for install in facts.derived(installs)
            if install.path == path and install.use and install.use.stage == stage.index
            if _is_heavy(install)
        }
        if not heavy:
            continue
        for instruction, variables in stage.scopes():
            below = sorted(line for line in heavy if line > instruction.line)
            reason = _changes_each_time(instruction, variables)
            if below and reason:
                yield rule.warning(
                    f"{reason}, and comes before the install in line {below[0]}: that layer and "
                    "all below it are new in every build",
                    where=f"{path}:{instruction.line}",
                )


def _is_heavy(install: Install) -> bool:
    """Tell whether an install brings packages of others, and not just the project itself."""
    if install.verb in ("lock", "pip compile", "run", "update"):
        return False
    own = [text for text in install.requirements if re.match(r"\.|/", text)]
    return bool(install.files) or len(install.requirements) > len(own) or install.verb == "sync"


def _changes_each_time(instruction: Instruction, variables: Mapping[str, str]) -> str:
    match instruction.name:
        case "ARG" | "ENV":
            for name, value in instruction.pairs:
                if VOLATILE.search(name) and not NOT_VOLATILE.search(name):
                    return f"{instruction.name} {name} differs in every build"
                if "$(date" in value:
                    return f"{instruction.name} {name} holds the time"
        case "ADD":
            source = expand(instruction.words[0], variables) if instruction.words else ""
            if source.startswith(("http://", "https://")) and not instruction.flag("checksum"):
                return f"ADD {source} is fetched in every build"
        case "COPY" if not instruction.flag("from"):
            sources = instruction.words[:-1]
            if any(source.rstrip("/") in (".", "", "./", ".git") for source in sources):
                return "COPY of the whole folder changes with every commit"
    return ""


@dataclass(kw_only=True)
class _Files:
    """What a stage has copied and changed so far, by absolute path → line."""

    copied: dict[str, int] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)


def copy_over_change(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a COPY that overwrites a file which a RUN above it has changed."""
    ignored = _ignored(facts)
    for path, stage in stages(facts):
        for line, file, changed in _overwritten(stage, ignored):
            kept = stage.variables()[0]
            harmless = kept.get("UV_NO_SYNC") or kept.get("UV_FROZEN")
            make = rule.warning if harmless else rule.error
            yield make(
                f"line {changed} changes {file}, and this COPY puts the file of the build context "
                "back: `uv run` (or the next install) will follow the old one",
                where=f"{path}:{line}",
            )


def _ignored(facts: ImageFacts) -> frozenset[str]:
    return frozenset(
        line.strip().lstrip("/").removeprefix("**/")
        for text in facts.texts
        if text.path.endswith(".dockerignore")
        for line in text.text.splitlines()
    )


def _overwritten(stage: Stage, ignored: frozenset[str]) -> Iterator[tuple[int, str, int]]:
    """Yield (line of the COPY, file, line of the change) for changes that nothing makes again."""
    state = _Files()
    folder = "/"
    undone: dict[str, tuple[int, int]] = {}
    own = {id(instruction) for instruction in stage.instructions}
    for instruction in stage.lineage():
        match instruction.name:
            case "WORKDIR":
                folder = posixpath.join(folder, instruction.value.strip().strip('"'))
            case "RUN":
                for file, line in _changes(run_commands(instruction), folder):
                    state.changed[file] = line
                    undone.pop(file, None)
            case "COPY" | "ADD":
                for file in _lands_on(instruction, folder, state, ignored):
                    if id(instruction) in own:
                        undone[file] = (instruction.line, state.changed[file])
                    del state.changed[file]
                _remember(instruction, folder, state)
    for file, (line, changed) in undone.items():
        yield line, file, changed


def _destination(instruction: Instruction, folder: str) -> tuple[tuple[str, ...], str, bool]:
    """Return (sources, absolute destination, whether it is a folder)."""
    *sources, target = instruction.words if len(instruction.words) > 1 else ("", "")
    is_folder = target.endswith("/") or target in (".", "..") or len(sources) > 1
    return tuple(sources), posixpath.normpath(posixpath.join(folder, target)), is_folder


def _remember(instruction: Instruction, folder: str, state: _Files) -> None:
    if instruction.flag("from") is not None:
        return
    sources, target, is_folder = _destination(instruction, folder)
    for source in sources:
        name = posixpath.basename(source.rstrip("/"))
        if name and name not in (".", ".."):
            state.copied[posixpath.join(target, name) if is_folder else target] = instruction.line


def _lands_on(
    instruction: Instruction, folder: str, state: _Files, ignored: frozenset[str]
) -> list[str]:
    """Return the changed files that a COPY overwrites."""
    sources, target, is_folder = _destination(instruction, folder)
    found = []
    for file in state.changed:
        name = posixpath.basename(file)
        if name in ignored or posixpath.relpath(file, target) in ignored:
            continue
        for source in sources:
            last = posixpath.basename(source.rstrip("/"))
            exact = posixpath.join(target, last) if is_folder else target
            inside = file.startswith(target.rstrip("/") + "/")
            if last in ("", ".", ".."):
                expected = file in state.copied or bool(CONTEXT_FILES.match(name))
                hit = inside and expected and instruction.flag("from") is None
            elif last == name:
                hit = exact == file
            else:
                hit = inside and not is_folder and file in state.copied and "." not in last
            if hit:
                found.append(file)
                break
    return found


def _changes(commands: tuple[Command, ...], folder: str) -> Iterator[tuple[str, int]]:
    """Yield (absolute path, line) of the files that commands write."""
    for command in commands:
        if command.name == "cd" and command.args:
            folder = posixpath.join(folder, command.args[0])
            continue
        for file in _written(command):
            if file and not re.search(r"[$*?]|^/dev/", file):
                yield posixpath.normpath(posixpath.join(folder, file)), command.line


def _written(command: Command) -> list[str]:
    plain = [word for word in command.args if not word.startswith("-")]
    files = [target for operator, target in command.redirects if operator in (">", ">>", "&>")]
    match command.name:
        case "sed" | "perl" | "yq" | "dasel" | "crudini":
            if any(re.match(r"-\w*i|--in-place|--set", word) for word in command.args):
                files += plain[1:] if "-e" not in command.args else plain
        case "tee" | "patch":
            files += plain
        case "cp" | "mv" | "install":
            files += plain[-1:] if len(plain) > 1 else []
        case "pip-compile":
            files += [
                following
                for word, following in zip(command.args, command.args[1:], strict=False)
                if word in ("-o", "--output-file")
            ]
        case _:
            for (name, verb), changed in _LOCK_COMMANDS.items():
                if command.name == name and verb in command.args[:2]:
                    files += changed
    return files


RULES: Final = rules_of(
    "order",
    (
        "volatile",
        volatile_above_heavy,
        "Every build and every pull moves all the heavy layers again.",
        "move it below the installs; copy only the files that the install needs",
        "pytorch/pytorch#125862, invoke-ai/InvokeAI#7571",
    ),
    (
        "copy-over-change",
        copy_over_change,
        "The container installs another torch at its first start.",
        "change the file after the COPY, keep it out by .dockerignore, or set UV_NO_SYNC=1",
        "NVIDIA-NeMo/Automodel#1847",
    ),
)
