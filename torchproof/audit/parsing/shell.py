"""Shell text → simple commands, for rules that read RUN lines and job scripts. Pure; runs nothing.

Not a shell: it expands nothing and follows every branch. That is what a check needs: each command
that may run, with its words as written, its line, and what it is piped from or redirected to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from torchproof.audit.parsing.shell_command import SHELLS, Command, script_argument, unwrap

MAX_DEPTH = 8
"""Levels of nested `sh -c` and `$( )` that are followed; deeper ones are ignored."""


def parse_shell(text: str, line: int = 1, depth: int = 0) -> tuple[Command, ...]:
    """Return the commands of a script in order, with those inside `$( )` and `sh -c`."""
    found: list[Command] = []
    for command in _Reader(text, line, depth).read():
        plain = unwrap(command)
        found.append(plain)
        if depth < MAX_DEPTH:
            inner = script_argument(plain)
            found += parse_shell(inner, plain.line, depth + 1)
            if plain.name in SHELLS or plain.name == "sbatch":
                found += parse_shell(plain.body, plain.line + 1, depth + 1)
    return tuple(found)


class _Reader:
    """Reads one text, once. A quote that is never closed ends with the text."""

    def __init__(self, text: str, line: int, depth: int) -> None:
        self.text, self.line, self.depth = text, line, depth
        self.at = 0
        self.word: list[str] | None = None
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
        """Return the text from here to the closing bracket; brackets inside quotes do not count."""
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
