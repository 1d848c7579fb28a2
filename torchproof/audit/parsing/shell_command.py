"""One simple command of a shell script, and what is wrapped around it. Pure.

`sudo -u app env A=1 pip install x` runs `pip install x`, with `A` set and two wrappers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_KEYWORDS = frozenset(
    {"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "!", "{", "}", "time"}
)
_WRAPPERS: Mapping[str, frozenset[str]] = {
    "sudo": frozenset({"-u", "-g", "-C", "-D", "-h", "-p", "-R", "-T"}),
    "env": frozenset({"-u", "-C", "-S"}),
    "exec": frozenset({"-a"}),
    "nohup": frozenset(),
    "command": frozenset(),
    "nice": frozenset({"-n"}),
    "ionice": frozenset({"-c", "-n"}),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "timeout": frozenset({"-s", "-k"}),
    "numactl": frozenset({"-N", "-m", "-C"}),
    "gosu": frozenset(),
    "tini": frozenset({"-p"}),
    "dumb-init": frozenset(),
}
"""Programs that run another command → their options that take a value."""
SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "su"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One simple command; `words` start with its program, as written.

    `env` holds the assignments before it, `wrappers` the programs that run it (`sudo`, `exec`),
    `redirects` pairs of operator and target, `piped` whether it reads the output of the command
    before it, `body` its here-document.
    """

    words: tuple[str, ...]
    line: int
    env: Mapping[str, str] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    redirects: tuple[tuple[str, str], ...] = ()
    piped: bool = False
    body: str = ""

    @property
    def name(self) -> str:
        """`/usr/bin/pip3` → `pip3`; empty for a line that only assigns."""
        return self.words[0].rsplit("/", maxsplit=1)[-1] if self.words else ""

    @property
    def args(self) -> tuple[str, ...]:
        """The words after the program."""
        return self.words[1:]


def script_argument(command: Command) -> str:
    """Return the script that a command passes to another shell; empty if it passes none."""
    if command.name == "eval":
        return " ".join(command.args)
    if command.name not in SHELLS:
        return ""
    for index, word in enumerate(command.args[:-1]):
        if re.fullmatch(r"-[a-z]*c", word):
            return command.args[index + 1]
    return ""


def unwrap(command: Command) -> Command:
    """Return a command without the keywords, assignments and wrappers before its program."""
    words, env, wrappers = list(command.words), dict(command.env), list(command.wrappers)
    while words:
        name = words[0].rsplit("/", maxsplit=1)[-1]
        assignment = _ASSIGNMENT.fullmatch(words[0])
        if assignment:
            env[assignment[1]] = assignment[2]
            words.pop(0)
        elif name in _KEYWORDS:
            words.pop(0)
        elif name in _WRAPPERS and len(words) > 1:
            wrappers.append(name)
            words = _after_options(words[1:], _WRAPPERS[name])
            if name in ("timeout", "gosu") and words:
                words.pop(0)
        else:
            break
    return replace(command, words=tuple(words), env=env, wrappers=tuple(wrappers))


def _after_options(words: list[str], valued: frozenset[str]) -> list[str]:
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "--":
            break
        if option in valued and words:
            words.pop(0)
    return words
