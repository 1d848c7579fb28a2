"""Family `dockerfile`: steps that give another image tomorrow, or undo what an earlier step did."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchproof.audit.dockerfile_parse import Instruction, Stage
from torchproof.audit.facts import ImageFacts
from torchproof.audit.installs import TORCH_FAMILY, Install, installs, requirement
from torchproof.audit.references import known_environment
from torchproof.audit.rules import Rule, rules_of
from torchproof.audit.stages import stages
from torchproof.audit.texts import dockerfile_of, shell_uses
from torchproof.results import Finding

CUDA_PACKAGES = re.compile(r"^(libcudnn|libnccl|cuda-|libcublas|tensorrt|libnvinfer|nvidia-)")
PYTHON_FOLDERS = re.compile(
    r"(^|/)([\w.-]*venv[\w.-]*|conda|miniconda\d*|mambaforge|\w*python\w*)/bin$"
)


def unreadable(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find what the builder would refuse."""
    for text in facts.texts:
        parsed = dockerfile_of(text)
        for line, problem in parsed.problems if parsed else ():
            yield rule.error(problem, where=f"{text.path}:{line}")


def unpinned(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find installs whose versions the day of the build decides."""
    for install in facts.derived(installs):
        match install.tool:
            case "pip" | "uv" | "requirements":
                yield from _unpinned_python(rule, install)
            case "conda":
                yield from _unpinned_conda(rule, install)
            case "apt":
                yield from _unpinned_apt(rule, install)
    yield from _piped_scripts(rule, facts)


def _unpinned_python(rule: Rule, install: Install) -> Iterator[Finding]:
    if install.verb in ("lock", "pip compile") or install.constraints:
        return
    variables = install.use.variables if install.use else {}
    if install.verb == "sync" and not (
        install.has("--frozen", "--locked")
        or variables.get("UV_FROZEN")
        or variables.get("UV_LOCKED")
    ):
        yield rule.warning(
            "`uv sync` may resolve again and change uv.lock",
            where=install.where,
            fix="add --frozen (or --locked, to stop when the lock is out of date)",
        )
    loose = [text for text in install.requirements if _is_loose(text)]
    if not loose:
        return
    heavy = [text for text in loose if (item := requirement(text)) and _name(item) in TORCH_FAMILY]
    make = rule.error if heavy else rule.warning
    yield make(f"not pinned: {', '.join(heavy or loose)}", where=install.where)


def _is_loose(text: str) -> bool:
    """Tell whether a requirement names a distribution without an exact version."""
    if re.match(r"(git|hg|svn|bzr)\+", text) or " @ git+" in text:
        address = text.partition("#")[0].partition("://")[2].partition("/")[2]
        return "@" not in address
    item = requirement(text)
    if item is None or item.url:
        return False
    if text.startswith(".") or re.search(r"[/\\]|\.whl$|\.tar\.gz$", text):
        return False
    return not any(
        specifier.operator in ("==", "===") and not specifier.version.endswith(".*")
        for specifier in item.specifier
    )


def _name(item: Requirement) -> str:
    return canonicalize_name(item.name)


def _unpinned_conda(rule: Rule, install: Install) -> Iterator[Finding]:
    if install.verb in ("update", "upgrade"):
        yield rule.warning(
            "`conda update` takes whatever is newest on the day of the build", where=install.where
        )
        return
    loose = [
        text
        for text in install.requirements
        if "$" not in text
        and "/" not in text
        and not re.search(r"\d", text.partition("=")[2])
        and not re.search(r"[<>]", text)
    ]
    heavy = [text for text in loose if text.split("=")[0] in ("pytorch", *TORCH_FAMILY)]
    if loose:
        make = rule.error if heavy else rule.warning
        yield make(f"not pinned: {', '.join(heavy or loose)}", where=install.where)


def _unpinned_apt(rule: Rule, install: Install) -> Iterator[Finding]:
    if install.verb.endswith("upgrade"):
        yield rule.warning(
            f"`apt-get {install.verb}` takes whatever is newest on the day of the build",
            where=install.where,
            fix="start from a newer base, pinned by digest",
        )
        return
    if install.verb != "install":
        return
    loose = [text for text in install.requirements if "=" not in text and "$" not in text]
    heavy = [text for text in loose if CUDA_PACKAGES.match(text) and text != "cuda-keyring"]
    if heavy:
        yield rule.warning(f"not pinned: {', '.join(heavy)}", where=install.where)
    elif loose:
        yield rule.note(
            f"not pinned: {', '.join(loose)}",
            where=install.where,
            fix="pin name=version, or take packages from a dated snapshot of the archive",
        )


def _piped_scripts(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    for text in facts.texts:
        before = ""
        for use in shell_uses(text):
            command = use.command
            if command.piped and command.name in ("sh", "bash") and before in ("curl", "wget"):
                yield rule.note(
                    "a script of the internet runs unseen, whatever it says on that day",
                    where=use.where,
                    fix="download a fixed version, check its sha256, then run it",
                )
            before = command.name


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


def shell_entrypoint(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a program that runs below a shell which keeps signals to itself."""
    for text in facts.texts:
        parsed = dockerfile_of(text)
        final = parsed.final if parsed else None
        last: dict[str, Instruction] = {}
        for instruction in final.lineage() if final else ():
            last[instruction.name] = instruction
        for name in ("ENTRYPOINT", "CMD"):
            found = last.get(name)
            if found is None or found.exec_form is not None or not found.value.strip():
                continue
            if name == "CMD" and "ENTRYPOINT" in last and last["ENTRYPOINT"].exec_form is None:
                continue
            if not re.match(r"\s*(exec|/?\S*(tini|dumb-init))\s", found.value):
                yield rule.warning(
                    f"{name} is in shell form: process 1 is a shell, which keeps SIGTERM to itself",
                    where=f"{text.path}:{found.line}",
                )


RULES: Final = rules_of(
    "dockerfile",
    (
        "syntax",
        unreadable,
        "The build ends before it starts.",
        "correct the line",
        "Dockerfile reference, docs.docker.com/reference/dockerfile",
    ),
    (
        "unpinned",
        unpinned,
        "The same Dockerfile gives another torch (or anything else) on another day.",
        "pin each name==version, or install from a lock",
        "pytorch/pytorch#119932, LMCache/LMCache#3400",
    ),
    (
        "hidden-arg",
        hidden_argument,
        "--build-arg is accepted and changes nothing.",
        "give the ARG another name than the ENV",
        "Dockerfile reference, Using ARG variables",
    ),
    (
        "lost-path",
        lost_path,
        '"python: executable file not found" in the published image.',
        "set ENV PATH in the final stage too",
        "pytorch/pytorch#170252",
    ),
    (
        "shell-form",
        shell_entrypoint,
        "A pod's end never reaches the job: no checkpoint, then SIGKILL.",
        'use the exec form, ["program", "argument"], or start the program with exec',
        "Dockerfile reference, Shell form ENTRYPOINT",
    ),
)
