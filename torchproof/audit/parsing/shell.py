"""Shell text → simple commands, for rules that read RUN lines and job scripts. Pure; runs nothing.

Not a shell: it expands nothing, and takes every branch. That is what a check needs: each command
that may run, with the words as written, the line, and what it is piped from or redirected to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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
"""Commands that run another command: their options that take a value."""
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "su"})
MAX_DEPTH = 8
"""Nested `sh -c` and `$( )` that are followed; deeper ones are left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One simple command; `words` start with its program, as written.

    `env` holds assignments before it, `wrappers` what runs it (`sudo`, `exec`), `redirects` pairs
    of operator and target, `piped` whether its input is the command before it, `body` its
    here-document.
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
        """`/usr/bin/pip3` → `pip3`; empty for a line of assignments alone."""
        return self.words[0].rsplit("/", maxsplit=1)[-1] if self.words else ""

    @property
    def args(self) -> tuple[str, ...]:
        """The words behind the program."""
        return self.words[1:]


def parse_shell(text: str, line: int = 1, depth: int = 0) -> tuple[Command, ...]:
    """Return the commands of a script in order, with those inside `$( )` and `sh -c`."""
    found: list[Command] = []
    for command in _Reader(text, line, depth).read():
        plain = _unwrap(command)
        found.append(plain)
        if depth < MAX_DEPTH:
            inner = _script_argument(plain)
            found += parse_shell(inner, plain.line, depth + 1)
            if plain.name in _SHELLS or plain.name == "sbatch":
                found += parse_shell(plain.body, plain.line + 1, depth + 1)
    return tuple(found)


def _script_argument(command: Command) -> str:
    """Return the script that a command passes to another shell; empty if it passes none."""
    if command.name == "eval":
        return " ".join(command.args)
    if command.name not in _SHELLS:
        return ""
    for index, word in enumerate(command.args[:-1]):
        if re.fullmatch(r"-[a-z]*c", word):
            return command.args[index + 1]
    return ""


def _unwrap(command: Command) -> Command:
    """Take away keywords, assignments and wrappers in front of the program."""
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


class _Reader:
    """Reads one text once. A quote that never ends, ends with the text."""

    def __init__(self, text: str, line: int, depth: int) -> None:
        self.text, self.line, self.depth = text, line, depth
        self.at = 0
        self.word: list[str] | None = None
        self.word_line = line
        self.words: list[str] = []
        self.start = line
        self.redirects: list[tuple[str, str]] = []
        self.operator = ""
        self.piped = False
        self.pending: list[tuple[str, bool]] = []
        self.inner: list[Command] = []
        self.done: list[Command] = []

    def read(self) -> Iterator[Command]:
        while self.at < len(self.text):
            self._step(self.text[self.at])
            yield from self._take()
        self._end_command()
        yield from self._take()

    def _take(self) -> list[Command]:
        taken, self.done = self.done, []
        return taken

    def _step(self, char: str) -> None:
        pair = self.text[self.at : self.at + 2]
        if pair == "\\\n":
            self.line += 1
            self.at += 2
        elif char == "\\":
            self._add(self.text[self.at + 1 : self.at + 2])
            self.at += 2
        elif char in "'\"":
            self._quoted(char)
        elif pair in ("$(", "<(", ">(") or char == "`":
            self._substitution(char)
        elif pair == "${":
            self._add(self._balanced("{", "}", 2))
        elif char == "#" and self.word is None:
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif char in "<>" or pair == "&>":
            self._redirect()
        elif char == "\n":
            self._end_command()
            self.at += 1
            self.line += 1
            self._here_documents()
        elif char in ";&|()":
            piped = char == "|" and pair != "||"
            self._end_command()
            self.piped = piped
            self.at += 2 if pair in ("&&", "||", "|&", ";;") else 1
        elif char.isspace():
            self._end_word()
            self.at += 1
        else:
            self._add(char)
            self.at += 1

    def _add(self, text: str) -> None:
        if self.word is None:
            self.word = []
            if not self.words:
                self.start = self.line
        self.word.append(text)

    def _quoted(self, quote: str) -> None:
        self._add("")
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != quote:
            char = self.text[self.at]
            pair = self.text[self.at : self.at + 2]
            if quote == '"' and pair == "\\\n":
                self.line += 1
                self.at += 2
            elif quote == '"' and char == "\\" and pair[1:] in ("\\", '"', "$", "`"):
                self._add(pair[1:])
                self.at += 2
            elif quote == '"' and (pair == "$(" or char == "`"):
                self._substitution(char)
            else:
                self.line += char == "\n"
                self._add(char)
                self.at += 1
        self.at += 1

    def _substitution(self, char: str) -> None:
        first = self.line
        if char == "`":
            end = self.text.find("`", self.at + 1)
            end = len(self.text) if end < 0 else end
            raw = self.text[self.at : end + 1]
            self.at = end + 1
            body = raw[1:].removesuffix("`")
        else:
            raw = self._balanced("(", ")", 2)
            body = raw[2:].removesuffix(")")
        self.line = first + raw.count("\n")
        self._add(raw)
        if not body.startswith("(") and self.depth < MAX_DEPTH:
            self.inner += parse_shell(body, first, self.depth + 1)

    def _balanced(self, opening: str, closing: str, skip: int) -> str:
        """Return the text from here to the bracket that closes it, quotes respected."""
        start, level, quote = self.at, 1, ""
        self.at += skip
        while self.at < len(self.text) and level:
            char = self.text[self.at]
            if char == "\\":
                self.at += 1
            elif quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            else:
                level += (char == opening) - (char == closing)
            self.at += 1
        return self.text[start : self.at]

    def _redirect(self) -> None:
        fd = "".join(self.word or [])
        if self.word is not None and fd.isdigit():
            self.word = None
        self._end_word()
        match = re.compile(r"&>>?|<<<|<<-?|>>|>\||>&|<&|<>|[<>]").match(self.text, self.at)
        operator = match.group() if match else self.text[self.at]
        self.at += len(operator)
        if operator in ("<<", "<<-"):
            mark = re.compile(r"[ \t]*(['\"\\]?)([\w.-]+)['\"]?").match(self.text, self.at)
            if mark:
                self.pending.append((mark[2], operator == "<<-"))
                self.at = mark.end()
            return
        self.operator = operator if fd in ("", "1") or operator != ">" else f"{fd}>"

    def _here_documents(self) -> None:
        for name, dedent in self.pending:
            lines: list[str] = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                current = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                self.line += 1
                if (current.lstrip("\t") if dedent else current) == name:
                    break
                lines.append(current)
            if self.done:
                self.done[-1] = replace(self.done[-1], body="\n".join(lines))
        self.pending = []

    def _end_word(self) -> None:
        if self.word is None:
            return
        text = "".join(self.word)
        if self.operator:
            self.redirects.append((self.operator, text))
            self.operator = ""
        else:
            self.words.append(text)
        self.word = None

    def _end_command(self) -> None:
        self._end_word()
        self.done += self.inner
        if self.words or self.redirects:
            self.done.append(
                Command(
                    words=tuple(self.words),
                    line=self.start,
                    redirects=tuple(self.redirects),
                    piped=self.piped,
                )
            )
        self.words, self.redirects, self.inner = [], [], []
        self.operator, self.piped = "", False
