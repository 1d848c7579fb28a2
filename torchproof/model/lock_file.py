"""Locks on disk: `images/<cell>/lock.yaml`."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from torchproof._yaml import load_yaml
from torchproof.errors import HostError, InputError
from torchproof.model.lock import Lock

IMAGES = Path("images")
"""Folder of the cells, relative to the working directory."""

HEADER = """\
# Made by `python build.py lock`. One cell, exact: every wheel, its hash, and where it comes from.
# `index` is an alias: `pypi` is whatever pip and uv are configured with.
"""

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_ADAPTER: TypeAdapter[Lock] = TypeAdapter(Lock)


def lock_path(cell: str, images: Path = IMAGES) -> Path:
    """Return the path of a cell's lock."""
    return images / cell / "lock.yaml"


def locked_versions(images: Path = IMAGES) -> frozenset[str]:
    """Return the versions of torch that have locks, read from the cells' folder names."""
    names = (path.parent.name.partition("-")[0] for path in images.glob("*/lock.yaml"))
    return frozenset(name for name in names if _VERSION.fullmatch(name))


def read_lock(path: Path) -> Lock:
    """Read a lock.

    Raises InputError, with the file and the field, if the file is not a lock.
    """
    fix = "run `python build.py lock` to make it again, or restore the file"
    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("there is no lock here", where=str(path), fix=fix) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cannot be read as a lock: {error}", where=str(path), fix=fix) from error
    if not isinstance(data, dict):
        raise InputError("a lock must be a mapping of fields", where=str(path), fix=fix)
    try:
        return _ADAPTER.validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "lock"
        raise InputError(f"{field}: {first['msg']}", where=str(path), fix=fix) from error


def render_lock(lock: Lock) -> str:
    """Return the text of a lock's file; equal locks give equal text."""
    data = _plain(asdict(lock))
    return HEADER + yaml.safe_dump(data, sort_keys=False, width=100, allow_unicode=True)


def write_lock(lock: Lock, path: Path) -> None:
    """Write a lock, whole or not at all; leave the file alone if nothing changes.

    Raises HostError if it cannot be written.
    """
    text = render_lock(lock)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    draft = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise HostError(f"cannot write {path}: {error}", fix="make it writable") from error


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case str():
            return str.__str__(value)
        case _:
            return value
