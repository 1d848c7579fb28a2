"""Family `entry`: does the image start: PATH, shebangs, entry point, an interpreter in reach."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from typing import Final

from torchproof.audit.facts import ImageFacts
from torchproof.audit.model.programs import (
    RANDOM,
    closed_to,
    image_user,
    interpreter_of,
    prefix_of,
    search_path,
    shebang,
    which,
)
from torchproof.audit.rule import Rule, rules_of
from torchproof.model.results import Finding

PROGRAMS: Final = ("python", "python3", "torchrun")
PLAIN_ENTRY: Final = frozenset({"tini", "dumb-init", "python", "python3", "torchrun", "sh", "bash"})
SYSTEM_PREFIXES: Final = frozenset({"/usr", "/usr/local"})


def _prefix(facts: ImageFacts) -> str | None:
    return prefix_of(facts.torch.site) if facts.torch else None


def _report(rule: Rule, facts: ImageFacts) -> Callable[..., Finding]:
    """Return how to say it: an entry point of its own may set PATH before anything else runs."""
    words = facts.config.entrypoint if facts.config else ()
    plain = not words or posixpath.basename(words[0]) in PLAIN_ENTRY
    return rule.error if plain else rule.warning


def programs(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find that python, torchrun (and pip) of torch's environment do not resolve by PATH."""
    prefix = _prefix(facts)
    if facts.config is None or prefix is None:
        return
    path = ":".join(search_path(facts))
    for name in (*PROGRAMS, "pip"):
        if which(facts, name):
            continue
        there = f"{prefix}/bin/{name}"
        if which(facts, there):
            yield _report(rule, facts)(
                f"{name} exists at {there}, but PATH of the image is {path}",
                where=there,
                fix=f"set ENV PATH={prefix}/bin:$PATH in the final stage",
            )
        elif name == "pip":
            yield rule.note("pip is not in the image", fix="install it, or use uv")
        elif name == "python" and not which(facts, "python3"):
            yield _report(rule, facts)(f"no python on PATH ({path})", where="PATH")
        elif name == "python":
            yield rule.warning(
                f"python3 is on PATH, python is not ({path})",
                where="PATH",
                fix="install python-is-python3, or link python to python3",
            )
        elif name == "torchrun":
            yield rule.warning(
                f"torch is installed in {prefix}, its torchrun is not",
                where=f"{prefix}/bin",
                fix="install torch again, or use python -m torch.distributed.run",
            )


def other_python(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find that PATH's python, or torchrun's, is not the one that torch is installed for."""
    prefix = _prefix(facts)
    if facts.config is None or facts.torch is None or prefix is None:
        return
    if facts.torch.site in facts.env.get("PYTHONPATH", "").split(":"):
        return
    for name in ("python", "python3"):
        found = which(facts, name)
        if found and not _same(posixpath.dirname(posixpath.dirname(found)), prefix):
            yield _report(rule, facts)(
                f"{name} on PATH is {found}, torch is installed for {prefix}",
                where=found,
                fix=f"put {prefix}/bin first on PATH",
            )
            break
    runner = which(facts, "torchrun")
    written, _ = interpreter_of(facts, runner) if runner else ("", None)
    if runner and written.startswith("/") and "/env" not in written:
        theirs = posixpath.dirname(posixpath.dirname(written))
        if not _same(theirs, prefix):
            yield rule.error(
                f"torchrun on PATH is {runner} (#!{written}), torch is installed for {prefix}: "
                "workers will not see its packages",
                where=runner,
                fix="remove it, or use python -m torch.distributed.run",
            )


def _same(one: str, other: str) -> bool:
    """Tell whether two prefixes are one environment; /usr and /usr/local share packages."""
    return one == other or {one, other} <= SYSTEM_PREFIXES


def shebangs(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find scripts of Python environments whose interpreter does not exist."""
    prefixes = {prefix_of(item.site) for item in facts.distributions}
    mine = _prefix(facts)
    for prefix in sorted(prefixes):
        for name in facts.listdir(f"{prefix}/bin"):
            script = f"{prefix}/bin/{name}"
            words = shebang(facts.text(script))
            if not words or "python" not in words[0]:
                continue
            entry = facts.lookup(words[0])
            if entry is not None and entry.mode & 0o111:
                continue
            make = rule.error if prefix == mine else rule.warning
            yield make(f"{script} starts with #!{words[0]}, which is not there", where=script)


def start_command(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find an ENTRYPOINT or CMD whose program does not exist or cannot be executed."""
    config = facts.config
    if config is None or not facts.files:
        return
    words = config.entrypoint or config.cmd
    if not words or "$" in words[0]:
        return
    what = "ENTRYPOINT" if config.entrypoint else "CMD"
    found = which(facts, words[0])
    if found is None:
        there = facts.lookup(words[0]) if "/" in words[0] else None
        why = "is not executable" if there else "is not in the image"
        yield rule.error(f"{what} {words[0]} {why}", where=words[0])
        return
    written, interpreter = interpreter_of(facts, found)
    if written.endswith("\r"):
        yield rule.error(f"{found} has Windows line ends: its #! names no program", where=found)
    elif written and interpreter is None:
        yield rule.error(f"{found} starts with #!{written}, which is not there", where=found)


def reachable(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find an interpreter that only root can reach, because of a folder on the way to it."""
    prefix = _prefix(facts)
    if facts.config is None or prefix is None:
        return
    user = image_user(facts)
    for name in ("python", "python3"):
        path = f"{prefix}/bin/{name}"
        if facts.lookup(path) is None:
            continue
        own = closed_to(facts, path, user) if user else None
        if own is not None and user is not None:
            yield rule.error(
                f"user {user.name or user.uid} cannot reach {path}: {own.path} has mode "
                f"{own.mode:o}",
                where=own.path,
            )
            return
        closed = closed_to(facts, path, RANDOM)
        if closed is not None:
            yield rule.warning(
                f"only root can reach {path}: {closed.path} has mode {closed.mode:o}",
                where=closed.path,
            )
            return


RULES: Final = rules_of(
    "entry",
    (
        "path",
        programs,
        '"python: executable file not found", "torchrun: command not found".',
        "set PATH in the final stage of the image",
        "pytorch/pytorch#170252, HIT-SCIR/Chinese-Mixtral-8x7B#23",
    ),
    (
        "other-python",
        other_python,
        "`python` starts, and `import torch` fails or finds another one.",
        "put torch's environment first on PATH",
        "KempnerInstitute/KempnerForge#68",
    ),
    (
        "shebang",
        shebangs,
        '"bad interpreter: No such file or directory".',
        "install the package again in its final place; environments cannot be moved",
        "execve(2); Python packaging, venv",
    ),
    (
        "command",
        start_command,
        "The container ends before it starts.",
        "correct ENTRYPOINT or CMD, or install the program",
        "OCI image specification, config",
    ),
    (
        "reachable",
        reachable,
        "The image works as root only.",
        "install the interpreter outside of /root (UV_PYTHON_INSTALL_DIR), or open the folder",
        "path_resolution(7)",
    ),
)
