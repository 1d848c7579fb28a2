"""Words and variables as the Dockerfile builder (and, near enough, a shell) reads them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

_VARIABLE = re.compile(
    r"\$(?:(?P<bare>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?:(?P<op>:?[-+?])(?P<word>[^{}]*))?\})"
)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Fill in variables as the builder does; unknown ones stay as they are written."""

    def value(match: re.Match[str]) -> str:
        known = variables.get(match["bare"] or match["name"])
        word = match["word"] or ""
        match match["op"]:
            case ":-":
                return known or word
            case "-":
                return known if known is not None else word
            case ":+" | "+":
                return word if known else ""
            case _:
                return known if known is not None else match.group()

    for _ in range(4):
        filled = _VARIABLE.sub(value, text)
        if filled == text:
            break
        text = filled
    return text


def split_words(text: str) -> list[str]:
    """Split at blanks; quotes hold a word together and are taken away."""
    words: list[str] = []
    current: list[str] | None = None
    quote = ""
    characters = iter(text.replace("\\\n", " "))
    for char in characters:
        if char.isspace() and not quote:
            if current is not None:
                words.append("".join(current))
            current = None
            continue
        current = [] if current is None else current
        if char == "\\" and quote != "'":
            current.append(next(characters, ""))
        elif char in "'\"" and quote in ("", char):
            quote = "" if quote else char
        else:
            current.append(char)
    if current is not None:
        words.append("".join(current))
    return words


def option_values(words: Sequence[str], *names: str) -> Iterator[str]:
    """Yield the values of options, `--name=value` or `--name value`; "" where none follows."""
    for word, following in zip(words, (*words[1:], ""), strict=False):
        name, given, value = word.partition("=")
        if name in names:
            yield value if given else following
