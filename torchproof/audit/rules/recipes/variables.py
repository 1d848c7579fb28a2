"""Family `dockerfile`, second part: variables that a stage does not see, or sees from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from torchproof.audit.facts import ImageFacts
from torchproof.audit.parsing.dockerfile import Instruction, Stage
from torchproof.audit.parsing.image_references import known_environment
from torchproof.audit.parsing.stages import stages
from torchproof.audit.parsing.texts import dockerfile_of
from torchproof.audit.rule import Rule, rules_of
from torchproof.model.results import Finding

PYTHON_FOLDERS = re.compile(
    r"(^|/)([\w.-]*venv[\w.-]*|conda|miniconda\d*|mambaforge|\w*python\w*)/bin$"
)


def hidden_argument(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find ARGs that a variable of the same name hides: ENV always wins."""
    for path, stage in stages(facts):
        inherited, _ = stage.parent.variables() if stage.parent else ({}, {})
        theirs = known_environment(stage.root)
        own: dict[str, str] = {}
        for position, instruction in enumerate(stage.instructions):
            if instruction.name == "ENV":
                own |= dict(instruction.pairs)
            if instruction.name != "ARG":
                continue
            for name, default in instruction.pairs:
                by = _hider(name, own, inherited, theirs, stage)
                if by is None:
                    continue
                reader = _reader(name, stage.instructions[position + 1 :])
                where = f"{path}:{instruction.line}"
                message = f"ARG {name} has no effect: {by} sets {name}, and ENV wins over ARG"
                if reader is not None:
                    yield rule.error(f"{message}; line {reader} reads it", where=where)
                elif default:
                    yield rule.warning(message, where=where)


def _hider(
    name: str,
    own: Mapping[str, str],
    inherited: Mapping[str, str],
    theirs: frozenset[str],
    stage: Stage,
) -> str | None:
    if name in own:
        return "an ENV above it"
    if name in inherited and stage.parent is not None:
        return f"an ENV of stage {stage.parent.label}"
    if name in theirs:
        return f"the base {stage.root}"
    return None


def _reader(name: str, following: tuple[Instruction, ...]) -> int | None:
    """Return the line of the first instruction that reads a variable before ENV sets it again."""
    pattern = re.compile(rf"\$(?:{name}\b|\{{{name}\b)")
    for instruction in following:
        if pattern.search(instruction.value) or any(
            pattern.search(document.text) for document in instruction.heredocs
        ):
            return instruction.line
    return None


def lost_argument(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find variables that only an ARG above the first FROM defines: stages do not see it."""
    for text in facts.texts:
        parsed = dockerfile_of(text)
        for stage in parsed.stages if parsed else ():
            reported: set[str] = set()
            for instruction, seen in stage.scopes():
                name = _unseen(instruction, parsed.args if parsed else {}, seen)
                if name and name not in reported and name not in known_environment(stage.root):
                    reported.add(name)
                    yield rule.error(
                        f"{name} is empty here: its ARG comes before FROM, and the stage does not "
                        "declare it",
                        where=f"{text.path}:{instruction.line}",
                    )


def _unseen(
    instruction: Instruction, before: Mapping[str, str], seen: Mapping[str, str]
) -> str | None:
    """Return a global ARG that an instruction reads and nothing in reach defines."""
    if instruction.name in ("ARG", "CMD", "ENTRYPOINT", "HEALTHCHECK"):
        return None
    for name in re.findall(r"\$\{?([A-Za-z_]\w*)", instruction.value):
        assigned = re.search(rf"(?<![\w$]){name}=|\b(for|read)\s+{name}\b", instruction.value)
        if name in before and name not in seen and not (assigned and instruction.name == "RUN"):
            return str(name)
    return None


def lost_path(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find final stages that copy an environment but not the PATH that made it usable."""
    for text in facts.texts:
        parsed = dockerfile_of(text)
        final = parsed.final if parsed else None
        if parsed is None or final is None:
            continue
        env, _ = final.variables()
        path = env.get("PATH", "").split(":")
        copied = _copied(final, parsed.stages)
        for stage in parsed.stages[:-1]:
            set_there, _ = stage.variables()
            for folder in set_there.get("PATH", "").split(":"):
                known = folder.startswith("/") and PYTHON_FOLDERS.search(folder)
                if not known or folder in path or stage is final.parent:
                    continue
                line = copied.get(stage.index, {})
                at = next(
                    (n for dst, n in line.items() if folder.startswith(dst.rstrip("/") + "/")), None
                )
                if at is not None:
                    yield rule.error(
                        f"final stage {final.label} copies {folder.removesuffix('/bin')} from "
                        f"stage {stage.label} and loses its PATH: python there does not resolve",
                        where=f"{text.path}:{at}",
                        fix=f'add ENV PATH="{folder}:$PATH" to the final stage',
                    )


def _holds(folder: str, path: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _copied(final: Stage, every: tuple[Stage, ...]) -> dict[int, dict[str, int]]:
    """Return stage index → destination → line of what the final stage copies from other stages."""
    names = {stage.name.lower(): stage.index for stage in every if stage.name}
    found: dict[int, dict[str, int]] = {}
    for instruction in final.lineage():
        source = instruction.flag("from") if instruction.name == "COPY" else None
        words = instruction.words
        if source is None or len(words) < 2:
            continue
        index = names.get(source.lower(), int(source) if source.isdigit() else -1)
        found.setdefault(index, {})[words[-1].rstrip("/") or "/"] = instruction.line
    return found


RULES: Final = rules_of(
    "dockerfile",
    (
        "hidden-arg",
        hidden_argument,
        "--build-arg is accepted and changes nothing.",
        "give the ARG another name than the ENV",
        "Dockerfile reference, Using ARG variables",
    ),
    (
        "lost-arg",
        lost_argument,
        "A version that looks set is empty, and the newest is installed.",
        "repeat ARG NAME (without a value) below FROM",
        "Dockerfile reference, Understand how ARG and FROM interact",
    ),
    (
        "lost-path",
        lost_path,
        '"python: executable file not found" in the published image.',
        "set ENV PATH in the final stage too",
        "pytorch/pytorch#170252",
    ),
)
