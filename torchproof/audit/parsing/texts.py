"""Files beside an image: which are Dockerfiles, scripts, manifests; and the commands in them.

`collect` reads them (the one function with I/O); `shell_uses` gives every shell command that any of
them would run, with the variables known at that point. Rules look at those.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path, PurePosixPath

from torchproof.audit.facts import TextFile
from torchproof.audit.parsing.apptainer import parse_definition
from torchproof.audit.parsing.dockerfile import Dockerfile, Instruction, parse_dockerfile
from torchproof.audit.parsing.manifests import Mapped, documents, scripts
from torchproof.audit.parsing.shell import parse_shell
from torchproof.audit.parsing.shell_command import Command
from torchproof.errors import InputError

SIZE_LIMIT = 1024 * 1024
"""Bytes above which a file is not a recipe."""
FILE_LIMIT = 2000
SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages"})
_SHELL_SUFFIXES = frozenset({".sh", ".bash", ".sbatch", ".slurm", ".job", ".batch", ".pbs", ".sub"})
_NOT_DOCKERFILES = frozenset(
    {
        *(".j2", ".tmpl", ".tpl", ".dockerignore", ".md", ".rst", ".txt", ".html", ".lock"),
        *(".yaml", ".yml", ".json", ".toml", ".py", ".go", ".rs", ".js", ".ts", ".sh", ".rb"),
    }
)
_SHEBANG = re.compile(r"#!\s*\S*?(?:/|\s)(?:ba|da|z|k|a)?sh\b")


class TextKind(StrEnum):
    """What a text is read as."""

    DOCKERFILE = "Dockerfile"
    DEFINITION = "Apptainer definition"
    SHELL = "shell script"
    YAML = "YAML"
    REQUIREMENTS = "requirements"
    MAKEFILE = "Makefile"
    PROJECT = "project file"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class ShellUse:
    """One command of one file, the variables known there, and (in a Dockerfile) its base.

    `base` and `platform` are "" outside of Dockerfiles; `where` is `file:line`.
    """

    path: str
    command: Command
    variables: Mapping[str, str] = field(default_factory=dict)
    base: str = ""
    platform: str = ""
    stage: int = -1

    @property
    def where(self) -> str:
        """`file:line`."""
        return f"{self.path}:{self.command.line}"


def kind_of(text: TextFile) -> TextKind:
    """Tell what a file is, by its name, else by how it starts."""
    name = PurePosixPath(text.path).name
    lower = name.lower()
    suffix = PurePosixPath(lower).suffix
    if re.fullmatch(r"(dockerfile|containerfile)([._-].*)?|.*\.(dockerfile|containerfile)", lower):
        return TextKind.OTHER if suffix in _NOT_DOCKERFILES else TextKind.DOCKERFILE
    definition = re.compile(r"^\s*bootstrap:\s*\w", re.IGNORECASE | re.MULTILINE)
    requirements = re.match(r"(.*[-_.])?(requirements|constraints?)\b", lower)
    kinds = {
        TextKind.DEFINITION: suffix in ("", ".def", ".singularity")
        and definition.search(text.text[:4096]),
        TextKind.YAML: suffix in (".yaml", ".yml") or (suffix == ".json" and '"kind"' in text.text),
        TextKind.REQUIREMENTS: suffix in (".txt", ".in") and requirements,
        TextKind.PROJECT: lower in ("pyproject.toml", "uv.toml"),
        TextKind.MAKEFILE: lower in ("makefile", "gnumakefile") or suffix == ".mk",
        TextKind.SHELL: suffix in _SHELL_SUFFIXES
        or _SHEBANG.match(text.text)
        or "\n#SBATCH" in text.text[:4096],
        TextKind.DOCKERFILE: not suffix and re.search(r"^FROM \S+", text.text, re.MULTILINE),
    }
    return next((kind for kind, applies in kinds.items() if applies), TextKind.OTHER)


def collect(place: Path) -> tuple[TextFile, ...]:
    """Read a file, or all files of a directory that are a Dockerfile or a recipe, sorted by path.

    Paths are as a user would type them. Raises InputError if a single file cannot be read.
    """
    if not place.is_dir():
        try:
            return (TextFile(path=str(place), text=place.read_text(encoding="utf-8")),)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"cannot be read as text: {getattr(error, 'strerror', None) or error}",
                where=str(place),
                fix="give a Dockerfile, a launch file, an image, or a directory",
            ) from error
    found = [text for text in _below(place) if kind_of(text) is not TextKind.OTHER]
    return tuple(sorted(found[:FILE_LIMIT], key=lambda text: text.path))


def _below(place: Path) -> Iterator[TextFile]:
    for folder, names, files in _walk(place):
        names[:] = sorted(name for name in names if name not in SKIPPED)
        for name in files:
            file = folder / name
            try:
                if file.is_file() and file.stat().st_size <= SIZE_LIMIT:
                    yield TextFile(path=str(file), text=file.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError):
                continue


def _walk(place: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    for folder, names, files in os.walk(place):
        yield Path(folder), names, files


@lru_cache(maxsize=256)
def dockerfile_of(text: TextFile) -> Dockerfile | None:
    """Return the parsed Dockerfile or definition; None for a text that is neither."""
    match kind_of(text):
        case TextKind.DOCKERFILE:
            return parse_dockerfile(text.text, text.path)
        case TextKind.DEFINITION:
            return parse_definition(text.text, text.path)
        case _:
            return None


@lru_cache(maxsize=256)
def yaml_of(text: TextFile) -> tuple[tuple[Mapped, ...], str]:
    """Return the mappings of a YAML text (a List unfolded), and why it cannot be read."""
    if kind_of(text) is not TextKind.YAML:
        return (), ""
    found, problem = documents(text.text)
    flat: list[Mapped] = []
    for document in found:
        if isinstance(document, Mapped):
            items = (
                document.get("items") if str(document.get("kind", "")).endswith("List") else None
            )
            flat += [item for item in items or () if isinstance(item, Mapped)]
            flat += [] if items else [document]
    return tuple(flat), problem


def run_commands(instruction: Instruction) -> tuple[Command, ...]:
    """Return the commands of a RUN: shell form, exec form, or here-documents for a shell."""
    if instruction.exec_form is not None:
        text = " ".join("'" + word.replace("'", "'\\''") + "'" for word in instruction.exec_form)
        return parse_shell(text, instruction.line)
    if not instruction.heredocs:
        return parse_shell(instruction.value, instruction.line)
    head = instruction.value.partition("<<")[0].strip()
    if head and not re.fullmatch(r"\S*\b(ba|da)?sh\b.*|set .*(&&|;)?", head):
        return parse_shell(head, instruction.line)
    return tuple(
        command
        for document in instruction.heredocs
        if not re.match(r"#!.*(python|perl|ruby|node)", document.text)
        for command in parse_shell(document.text, document.line)
    )


@lru_cache(maxsize=256)
def shell_uses(text: TextFile) -> tuple[ShellUse, ...]:
    """Return every shell command that a file holds, in order."""
    match kind_of(text):
        case TextKind.DOCKERFILE | TextKind.DEFINITION:
            return tuple(_of_dockerfile(text))
        case TextKind.SHELL:
            return tuple(_of_shell(text.path, parse_shell(text.text), {}))
        case TextKind.MAKEFILE:
            return tuple(_of_shell(text.path, parse_shell(_make_recipes(text.text)), {}))
        case TextKind.YAML:
            mappings, _ = yaml_of(text)
            return tuple(
                use
                for mapping in mappings
                for script in scripts(mapping)
                for use in _of_shell(
                    text.path, parse_shell(script.text, script.line), dict(script.env)
                )
            )
        case _:
            return ()


def _of_dockerfile(text: TextFile) -> Iterator[ShellUse]:
    parsed = dockerfile_of(text)
    for stage in parsed.stages if parsed else ():
        for instruction, variables in stage.scopes():
            if instruction.name != "RUN":
                continue
            yield from _of_shell(
                text.path,
                run_commands(instruction),
                dict(variables),
                base=stage.root,
                platform=stage.platform,
                stage=stage.index,
            )


def _of_shell(
    path: str,
    commands: tuple[Command, ...],
    variables: dict[str, str],
    *,
    base: str = "",
    platform: str = "",
    stage: int = -1,
) -> Iterator[ShellUse]:
    for command in commands:
        seen = {**variables, **command.env}
        if not command.words:
            variables |= command.env
        elif command.name in ("export", "declare", "readonly", "typeset"):
            assigned = (word.partition("=") for word in command.args if "=" in word)
            variables |= {name: value for name, _, value in assigned}
        yield ShellUse(
            path=path,
            command=command,
            variables=seen,
            base=base,
            platform=platform,
            stage=stage,
        )


def _make_recipes(text: str) -> str:
    """Return a Makefile with all but its recipes blanked, so that lines stay where they are."""
    lines = [
        re.sub(r"^\t[@+-]*", "", line).replace("$$", "$") if line.startswith("\t") else ""
        for line in text.split("\n")
    ]
    return "\n".join(lines)
