"""pyproject.toml and uv.toml → the indexes that uv would ask for their dependencies. Pure."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from packaging.utils import canonicalize_name

from torchproof.audit.facts import TextFile
from torchproof.audit.parsing.install_request import Install


def project_installs(text: TextFile) -> tuple[Install, ...]:
    """Return a project as one install by uv; nothing for what is no TOML or names no dependency.

    A source (`tool.uv.sources`) that names an index for torch takes it out of the others' reach.
    """
    try:
        data = tomllib.loads(text.text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return ()
    own = text.path.endswith("uv.toml")
    uv = data if own else _table(_table(data, "tool"), "uv")
    project = _table(data, "project")
    dependencies = [item for item in _list(project, "dependencies") if isinstance(item, str)]
    sources = _table(uv, "sources")
    free = tuple(item for item in dependencies if not _sourced(item, sources))
    indexes = [item for item in _list(uv, "index") if isinstance(item, dict) and "url" in item]
    main = str(uv.get("index-url", "")) or _default(indexes)
    extra = [str(item) for item in _list(uv, "extra-index-url")]
    further = [item for item in indexes if not item.get("default") and not item.get("explicit")]
    extra += [str(item["url"]) for item in further]
    if not free:
        return ()
    return (
        Install(
            tool="uv",
            verb="project",
            path=text.path,
            line=_line(text.text, free),
            requirements=free,
            index=main,
            index_written=main,
            extra=tuple(extra),
            options=("--index-strategy",) if "index-strategy" in uv else (),
        ),
    )


def _table(data: Any, name: str) -> dict[str, Any]:
    found = data.get(name) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def _list(data: dict[str, Any], name: str) -> list[Any]:
    found = data.get(name)
    return found if isinstance(found, list) else []


def _default(indexes: list[dict[str, Any]]) -> str:
    return next((str(item["url"]) for item in indexes if item.get("default")), "")


def _sourced(requirement: str, sources: dict[str, Any]) -> bool:
    name = re.match(r"[\w.-]+", requirement)
    known = {canonicalize_name(source) for source in sources}
    return name is not None and canonicalize_name(name.group()) in known


def _line(text: str, requirements: tuple[str, ...]) -> int:
    torch = next((item for item in requirements if item.startswith("torch")), requirements[0])
    at = text.find(torch)
    return text[: max(at, 0)].count("\n") + 1
