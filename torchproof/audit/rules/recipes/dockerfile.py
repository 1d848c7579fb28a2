"""Family `dockerfile`: steps that give another image tomorrow, or undo what an earlier step did."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchproof.audit.facts import ImageFacts
from torchproof.audit.parsing.dockerfile import Instruction
from torchproof.audit.parsing.find_installs import installs
from torchproof.audit.parsing.install_request import TORCH_FAMILY, Install, requirement
from torchproof.audit.parsing.texts import dockerfile_of, shell_uses
from torchproof.audit.rule import Rule, rules_of
from torchproof.model.results import Finding

CUDA_PACKAGES = re.compile(r"^(libcudnn|libnccl|cuda-|libcublas|tensorrt|libnvinfer|nvidia-)")


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
    if install.verb in ("lock", "pip compile", "project") or install.constraints:
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
        "shell-form",
        shell_entrypoint,
        "A pod's end never reaches the job: no checkpoint, then SIGKILL.",
        'use the exec form, ["program", "argument"], or start the program with exec',
        "Dockerfile reference, Shell form ENTRYPOINT",
    ),
)
