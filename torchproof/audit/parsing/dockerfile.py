"""Dockerfile text → stages and instructions. Pure.

Follows the Dockerfile reference: parser directives, line continuations (with comments and empty
lines inside), here-documents, the exec form, and the scope of ARG and ENV.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torchproof.audit.parsing.words import expand, split_words

INSTRUCTIONS = frozenset(
    {
        *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK"),
        *("LABEL", "MAINTAINER", "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME"),
        "WORKDIR",
    }
)
_HEREDOC = re.compile(r"<<(?P<dash>-?)(?P<quote>['\"]?)(?P<name>[A-Za-z_][\w.]*)(?P=quote)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HereDocument:
    """A here-document of RUN, COPY or ADD: its name, text and the line that its text starts on."""

    name: str
    text: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction.

    `value` keeps continuations as backslash-newline, so that lines can be counted; `flags` are its
    options (`--from=x`), `exec_form` the list of a JSON form or None.
    """

    name: str
    value: str
    line: int
    flags: tuple[str, ...] = ()
    exec_form: tuple[str, ...] | None = None
    heredocs: tuple[HereDocument, ...] = ()

    def flag(self, name: str) -> str | None:
        """Return the value of `--name=value`; None if it is not given."""
        for text in self.flags:
            key, _, value = text.removeprefix("--").partition("=")
            if key == name:
                return value
        return None

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the value: the exec form's, else split at blanks (quotes respected)."""
        if self.exec_form is not None:
            return self.exec_form
        return tuple(split_words(self.value))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Names and values of ENV, LABEL or ARG; a value that is not given is ""."""
        words = self.words
        if self.name in ("ENV", "LABEL") and words and "=" not in words[0]:
            return ((words[0], " ".join(words[1:])),)
        return tuple((key, value) for key, _, value in (word.partition("=") for word in words))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One build stage. `base` is what follows FROM with the global ARGs filled in.

    `parent` is the stage that it starts from, if it starts from one.
    """

    index: int
    name: str
    written: str
    base: str
    line: int
    platform: str = ""
    parent: Stage | None = None
    instructions: tuple[Instruction, ...] = ()
    before: Mapping[str, str] = field(default_factory=dict)
    """Global ARGs: name → default."""

    @property
    def label(self) -> str:
        """Its name, or its number."""
        return self.name or str(self.index)

    @property
    def root(self) -> str:
        """The external image below this stage and its parents."""
        return self.parent.root if self.parent else self.base

    def lineage(self) -> tuple[Instruction, ...]:
        """The instructions of its parents and its own, in the order in which they apply."""
        above = self.parent.lineage() if self.parent else ()
        return above + self.instructions

    def scopes(self) -> Iterator[tuple[Instruction, Mapping[str, str]]]:
        """Yield each own instruction with the variables it sees (ENV wins over ARG, as it does)."""
        env, args = self.parent.variables() if self.parent else ({}, {})
        for instruction in self.instructions:
            yield instruction, args | env
            _apply(instruction, env, args, self.before)

    def variables(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return (ENV, ARG) at the end of the stage."""
        env, args = self.parent.variables() if self.parent else ({}, {})
        for instruction in self.instructions:
            _apply(instruction, env, args, self.before)
        return env, args


@dataclass(frozen=True, kw_only=True)
class Dockerfile:
    """A parsed Dockerfile. `problems` are (line, what is wrong): it is read as far as it can be."""

    path: str
    stages: tuple[Stage, ...]
    args: Mapping[str, str]
    problems: tuple[tuple[int, str], ...] = ()

    @property
    def final(self) -> Stage | None:
        """The stage that a plain build makes."""
        return self.stages[-1] if self.stages else None


def parse_dockerfile(text: str, path: str = "Dockerfile") -> Dockerfile:
    """Read a Dockerfile; what cannot be read is named in `problems`, the rest is kept."""
    problems: list[tuple[int, str]] = []
    stages: list[Stage] = []
    globals_: dict[str, str] = {}
    current: list[Instruction] = []
    head: Instruction | None = None
    for instruction in _instructions(text, problems):
        if instruction.name == "FROM":
            if head is not None:
                stages.append(_stage(head, current, stages, globals_))
            head, current = instruction, []
        elif head is not None:
            current.append(instruction)
        elif instruction.name == "ARG":
            given = [word.partition("=") for word in instruction.words if "=" in word]
            globals_ |= {name: expand(value, globals_) for name, _, value in given}
        else:
            problems.append((instruction.line, f"{instruction.name} comes before the first FROM"))
    if head is not None:
        stages.append(_stage(head, current, stages, globals_))
    else:
        problems.append((1, "there is no FROM"))
    return Dockerfile(path=path, stages=tuple(stages), args=globals_, problems=tuple(problems))


def _stage(
    head: Instruction, body: list[Instruction], earlier: list[Stage], args: Mapping[str, str]
) -> Stage:
    words = head.words
    written = words[0] if words else ""
    base = expand(written, args)
    named = len(words) >= 3 and words[1].lower() == "as"
    parents = {stage.name.lower(): stage for stage in earlier if stage.name}
    return Stage(
        index=len(earlier),
        name=words[2] if named else "",
        written=written,
        base=base,
        line=head.line,
        platform=expand(head.flag("platform") or "", args),
        parent=parents.get(base.lower()),
        instructions=tuple(body),
        before=dict(args),
    )


def _apply(
    instruction: Instruction, env: dict[str, str], args: dict[str, str], before: Mapping[str, str]
) -> None:
    if instruction.name == "ENV":
        seen = args | env
        env |= {name: expand(value, seen) for name, value in instruction.pairs}
    elif instruction.name == "ARG":
        for word in instruction.words:
            name, given, value = word.partition("=")
            if given:
                args[name] = expand(value, args | env)
            elif name in before:
                args[name] = before[name]


def _instructions(text: str, problems: list[tuple[int, str]]) -> Iterator[Instruction]:
    lines = text.replace("\r\n", "\n").split("\n")
    escape = _escape(lines)
    at = 0
    while at < len(lines):
        start = at
        if not lines[at].strip() or lines[at].lstrip().startswith("#"):
            at += 1
            continue
        raw, at = _logical_line(lines, at, escape)
        if not raw.strip():  # a continuation of nothing
            continue
        heredocs: list[HereDocument] = []
        word = raw.split(maxsplit=1)[0].upper()
        if word in ("RUN", "COPY", "ADD", "ONBUILD"):
            for match in _HEREDOC.finditer(raw):
                document, at = _here_document(lines, at, match)
                heredocs.append(document)
        if word not in INSTRUCTIONS:
            problems.append((start + 1, f"{raw.split()[0]!r} is not an instruction"))
            continue
        yield _instruction(raw, start + 1, tuple(heredocs))


def _escape(lines: list[str]) -> str:
    for line in lines:
        match = re.fullmatch(r"\s*#\s*(\w+)\s*=\s*(\S+)\s*", line)
        if match is None:
            return "\\"
        if match[1].lower() == "escape":
            return match[2]
    return "\\"


def _logical_line(lines: list[str], at: int, escape: str) -> tuple[str, int]:
    """Return one instruction with its continuations, and the line behind it."""
    parts: list[str] = []
    while at < len(lines):
        line = lines[at]
        at += 1
        if parts and (not line.strip() or line.lstrip().startswith("#")):
            parts.append("")
            continue
        stripped = line.rstrip()
        if not stripped.endswith(escape):
            parts.append(line)
            break
        parts.append(stripped[: -len(escape)])
    return "\\\n".join(parts), at


def _here_document(lines: list[str], at: int, match: re.Match[str]) -> tuple[HereDocument, int]:
    body: list[str] = []
    first = at + 1
    while at < len(lines):
        line = lines[at].lstrip("\t") if match["dash"] else lines[at]
        at += 1
        if line == match["name"]:
            break
        body.append(line)
    return HereDocument(name=match["name"], text="\n".join(body), line=first), at


def _instruction(raw: str, line: int, heredocs: tuple[HereDocument, ...]) -> Instruction:
    match = re.match(r"\s*(\w+)\s*", raw)
    name = match[1].upper() if match else ""
    value = raw[match.end() :] if match else raw
    line += raw[: match.end()].count("\n") if match else 0
    if name == "ONBUILD":
        return _instruction(value, line, heredocs)
    flags: list[str] = []
    if name in ("RUN", "COPY", "ADD", "FROM", "HEALTHCHECK"):
        while flag := re.match(r"(--[\w-]+(?:=\S*)?)(\s+|\\\n)+", value):
            flags.append(flag[1])
            line += flag.group().count("\n")
            value = value[flag.end() :]
    return Instruction(
        name=name,
        value=value,
        line=line,
        flags=tuple(flags),
        exec_form=_exec_form(value),
        heredocs=heredocs,
    )


def _exec_form(value: str) -> tuple[str, ...] | None:
    text = value.replace("\\\n", " ").strip()
    if not text.startswith("["):
        return None
    try:
        words = json.loads(text)
    except ValueError:
        return None
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        return tuple(words)
    return None
