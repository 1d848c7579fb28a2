"""YAML as people write it: plain scalars stay text, values have line numbers, keys are unique."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from torchproof.errors import InputError

Location = tuple[str | int, ...]
_MOST_NODES = 50_000
"""More nodes than any real file has; stops YAML that aliases blow up."""

_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "~": None, "": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file's content. `lines` maps the path of a value to its line, counted from 1."""

    path: Path
    data: Any
    lines: Mapping[Location, int]

    def where(self, location: Location) -> str:
        """`matrix.yaml:12` for a value, or for the nearest value around it."""
        while location and location not in self.lines:
            location = location[:-1]
        return f"{self.path}:{self.lines.get(location, 1)}"


def read_yaml(path: Path) -> Document:
    """Read a YAML file. Raises InputError like `parse_yaml`, or if there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError("there is no such file", where=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from error
    return parse_yaml(text, path)


def load_yaml(text: str) -> Any:
    """Read YAML that torchproof itself keeps (facts, locks). Raises `yaml.YAMLError`.

    With libyaml, where PyYAML has it: these files are long, and it is ten times as fast.
    """
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def parse_yaml(text: str, path: Path) -> Document:
    """Parse YAML. Numbers stay text, so that `2.10` is not 2.1; true, false, null are read.

    Raises InputError, with `path` and line, for text that is not YAML or that repeats a key.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = " ".join(filter(None, (error.context, error.problem)))
        raise InputError(f"not YAML: {problem}", where=f"{path}:{line}") from error
    except yaml.YAMLError as error:
        raise InputError(f"not YAML: {error}", where=str(path)) from error
    except RecursionError:
        raise InputError("nested too deeply to be read", where=str(path)) from None
    lines: dict[Location, int] = {}
    data = _Builder(path, lines).build(node, (), frozenset()) if node else None
    return Document(path=path, data=data, lines=lines)


class _Builder:
    def __init__(self, path: Path, lines: dict[Location, int]) -> None:
        self._path = path
        self._lines = lines
        self._count = 0

    def build(self, node: yaml.Node, location: Location, above: frozenset[int]) -> Any:
        line = node.start_mark.line + 1
        self._lines.setdefault(location, line)
        self._count += 1
        if id(node) in above or self._count > _MOST_NODES:
            raise InputError(
                "aliases make this file refer to itself, or grow without limit",
                where=f"{self._path}:{line}",
                fix="write the values out",
            )
        above |= {id(node)}
        match node:
            case yaml.MappingNode():
                return self._mapping(node, location, above)
            case yaml.SequenceNode():
                return [
                    self.build(item, (*location, place), above)
                    for place, item in enumerate(node.value)
                ]
            case yaml.ScalarNode():
                return _WORDS.get(node.value, node.value) if node.style is None else node.value
        raise AssertionError(node)

    def _mapping(self, node: yaml.MappingNode, location: Location, above: frozenset[int]) -> Any:
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise InputError("a key must be plain text", where=f"{self._path}:{line}")
            name = key.value
            if name in mapping:
                first = self._lines[*location, name]
                raise InputError(
                    f"the key `{name}` is listed twice, first on line {first}",
                    where=f"{self._path}:{line}",
                    fix="keep one of them",
                )
            self._lines[*location, name] = line
            mapping[name] = self.build(value, (*location, name), above)
        return mapping
