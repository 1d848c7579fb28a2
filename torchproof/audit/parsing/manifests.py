"""YAML with line numbers, and the shell scripts that CI files and manifests hold. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

_SCRIPT_KEYS = frozenset({"run", "script", "before_script", "after_script", "commands", "cmds"})
_ENV_KEYS = ("env", "environment", "variables")
DEPTH_LIMIT = 200
"""Nesting that is followed; deeper YAML is not a manifest."""


class Mapped(dict[str, Any]):
    """A mapping that knows the line of each key (and its own)."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}

    def at(self, key: str) -> int:
        """Return the line of a key's value; the mapping's own if it has no such key."""
        return self.lines.get(key, self.line)


class Listed(list[Any]):
    """A list that knows the line of each item."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[int] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Shell text inside a manifest, the line that it starts on, and the environment around it."""

    text: str
    line: int
    env: Mapping[str, str] = field(default_factory=dict)


def documents(text: str) -> tuple[list[Any], str]:
    """Return the documents of a YAML (or JSON) text, and what stops it from being read.

    Mappings are `Mapped`, lists `Listed`; scalars are read as YAML 1.1 does. Kubernetes `List`
    objects are not unfolded here.
    """
    found: list[Any] = []
    loader = yaml.CSafeLoader(text)
    try:
        while loader.check_node():
            found.append(_value(loader.get_node(), loader, {}, 0))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        return found, f"{line}{getattr(error, 'problem', None) or error}"
    finally:
        loader.dispose()
    return found, ""


def _value(node: Any, loader: Any, seen: dict[int, Any], depth: int) -> Any:
    if depth > DEPTH_LIMIT:
        raise ValueError("nested too deeply")
    if id(node) in seen:
        return seen[id(node)]
    result: Any
    if isinstance(node, yaml.MappingNode):
        result = seen[id(node)] = Mapped(node.start_mark.line + 1)
        for key_node, value_node in node.value:
            value = _value(value_node, loader, seen, depth + 1)
            if key_node.value == "<<" and isinstance(value, Mapped):
                for key, inherited in value.items():
                    result.setdefault(key, inherited)
                    result.lines.setdefault(key, value.at(key))
                continue
            key = str(key_node.value)
            result[key] = value
            result.lines[key] = _line(value_node)
    elif isinstance(node, yaml.SequenceNode):
        result = seen[id(node)] = Listed()
        for item in node.value:
            result.append(_value(item, loader, seen, depth + 1))
            result.lines.append(_line(item))
    else:
        try:
            result = loader.construct_object(node, deep=True)
        except yaml.YAMLError:
            result = node.value
    return result


def _line(node: Any) -> int:
    block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    return int(node.start_mark.line) + 1 + block


def strings(value: Any) -> list[str]:
    """Return the scalars of a list as text; a scalar as a list of one; else nothing."""
    if isinstance(value, list):
        return [str(item) for item in value if isinstance(item, str | int | float)]
    return [str(value)] if isinstance(value, str | int | float) else []


def mappings(value: Any) -> list[Mapped]:
    """Return the mappings of a list; nothing for anything else."""
    return [item for item in value if isinstance(item, Mapped)] if isinstance(value, list) else []


def walk(value: Any) -> Iterator[Mapped]:
    """Yield every mapping of a document once, however often an alias repeats it."""
    seen: set[int] = set()
    todo = [value]
    while todo:
        item = todo.pop()
        if not isinstance(item, Mapped | Listed) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Mapped):
            yield item
        todo += reversed(list(item.values()) if isinstance(item, Mapped) else item)


def scalars(value: Any, limit: int = 20000) -> list[str]:
    """Return keys and scalars of a piece of a document as text, `limit` of them at most."""
    found: list[str] = []
    todo = [value]
    while todo and len(found) < limit:
        item = todo.pop()
        if isinstance(item, Mapped):
            found += item
            todo += reversed(list(item.values()))
        elif isinstance(item, Listed):
            todo += reversed(item)
        elif item is not None:
            found.append(str(item))
    return found


def environment(value: Any) -> dict[str, str]:
    """Read an environment in any spelling: a mapping, `NAME=value`, or name and value items.

    A Kubernetes `valueFrom` gives the empty text.
    """
    if isinstance(value, dict):
        return {
            name: "" if text is None else str(text)
            for name, text in value.items()
            if not isinstance(text, dict | list)
        }
    found: dict[str, str] = {}
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict) and "name" in item:
            found[str(item["name"])] = str(item.get("value", ""))
        elif isinstance(item, str):
            name, _, text = item.partition("=")
            found[name] = text
    return found


def scripts(value: Any, env: Mapping[str, str] | None = None) -> Iterator[Script]:
    """Yield every piece of shell in a document: CI steps, and commands with their arguments."""
    yield from _scripts(value, dict(env or {}), 0, set())


def _scripts(value: Any, env: dict[str, str], depth: int, seen: set[int]) -> Iterator[Script]:
    if depth > DEPTH_LIMIT or id(value) in seen:
        return
    if isinstance(value, Mapped | Listed):
        seen.add(id(value))
    if isinstance(value, Mapped):
        for key in _ENV_KEYS:
            env = env | environment(value.get(key))
        yield from _own(value, env)
        for item in value.values():
            yield from _scripts(item, env, depth + 1, seen)
    elif isinstance(value, Listed):
        for item in value:
            yield from _scripts(item, env, depth + 1, seen)


def _own(value: Mapped, env: Mapping[str, str]) -> Iterator[Script]:
    for key in _SCRIPT_KEYS & value.keys():
        item = value[key]
        if isinstance(item, str):
            yield Script(text=item, line=value.at(key), env=env)
        elif isinstance(item, Listed):
            for line, text in zip(item.lines, item, strict=True):
                if isinstance(text, str):
                    yield Script(text=text, line=line, env=env)
    words: list[str] = []
    for key in ("command", "args"):
        item = value.get(key)
        if isinstance(item, str):
            yield Script(text=item, line=value.at(key), env=env)
        elif isinstance(item, Listed):
            words += strings(item)
    if words:
        line = value.at("command" if "command" in value else "args")
        yield Script(text=shlex.join(words), line=line, env=env)
