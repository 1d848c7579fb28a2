"""uv as the resolver: requirements in, exact wheels with hashes out, for any target machine.

Only what names an index or how to reach it is taken from the user's environment; the rest of uv's
settings there (find-links, overrides, pre-releases …) must not change what a lock holds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from platformdirs import user_config_path
from uv import find_uv_bin

from torchproof._http import redact
from torchproof.errors import CellError, HostError, IndexUnreachableError
from torchproof.model.platforms import machine_of

_GLIBC = "manylinux_2_28"
"""Wheels of torch from 2.7 on need glibc 2.28."""

_KEPT = re.compile(
    r"UV_(DEFAULT_INDEX|INDEX_URL|INDEX_\w+_(USERNAME|PASSWORD)|KEYRING_PROVIDER|INSECURE_HOST"
    r"|NATIVE_TLS|SYSTEM_CERTS|CACHE_DIR|CONFIG_FILE|NO_CONFIG|OFFLINE|HTTP_\w+)"
)
NETWORK_TROUBLE = re.compile(
    r"[Ff]ailed to fetch|error sending request|dns error|[Cc]onnection (refused|reset|closed)"
    r"|timed out|operation timed out|HTTP status (server|client) error|Network connectivity"
)
"""What uv says when an index does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """One wheel that an index (or a folder) offers. `size`, `sha256`: None if not given."""

    filename: str
    url: str
    sha256: str | None
    size: int | None
    yanked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """One package of a resolution, with every wheel that the target could use."""

    name: str
    version: str
    wheels: tuple[WheelFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to resolve for."""

    python: str
    platform: str


def compile_requirements(
    requirements: Sequence[str],
    target: Target,
    *,
    default_index: str | None = None,
    named_index: str | None = None,
    from_named: Sequence[str] = (),
    overrides: Sequence[str] = (),
    constraints: Sequence[str] = (),
    find_links: Path | None = None,
    dependencies: bool = True,
    wheels_only: bool = True,
) -> tuple[Resolved, ...]:
    """Resolve requirements to exact packages.

    `default_index` is the URL of the alias `pypi` (None: as uv and pip are configured); packages in
    `from_named` come from `named_index` alone. Versions without a wheel are passed over, unless
    `wheels_only` is off. Raises IndexUnreachableError if an index does not answer, CellError if
    there is no solution, HostError if uv cannot run.
    """
    with tempfile.TemporaryDirectory(prefix="torchproof-") as folder:
        project = Path(folder) / "pyproject.toml"
        project.write_text(
            _project(
                target,
                requirements=requirements,
                named_index=named_index,
                from_named=from_named,
                overrides=overrides,
                constraints=constraints,
            ),
            encoding="utf-8",
        )
        command = [
            *(find_uv_bin(), "pip", "compile", "--quiet", "--no-header"),
            *("--no-python-downloads", "--python", sys.executable),
            *("--python-version", target.python),
            *("--python-platform", f"{machine_of(target.platform)}-{_GLIBC}"),
            *("--format", "pylock.toml"),
        ]
        if default_index or (default_index := pip_index()):
            command += ["--default-index", default_index]
        if find_links:
            command += ["--find-links", str(find_links)]
        if not dependencies:
            command.append("--no-deps")
        if wheels_only:
            command.append("--no-build")
        command.append(project.name)
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment(os.environ),
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise IndexUnreachableError("uv found no answer within 300 s") from error
        except OSError as error:
            raise HostError(f"uv cannot run: {error}", fix="run `make venv`") from error
    if done.returncode != 0:
        raise _failure(redact(done.stderr).strip())
    return parse_pylock(done.stdout)


def parse_pylock(text: str) -> tuple[Resolved, ...]:
    """Read the packages of a pylock.toml (PEP 751); packages without wheels have none."""
    packages = tomllib.loads(text).get("packages", [])
    return tuple(
        Resolved(
            name=canonicalize_name(package["name"]),
            version=package.get("version", ""),
            wheels=tuple(map(_wheel, _wheels_of(package))),
        )
        for package in packages
    )


def _wheels_of(package: Mapping[str, Any]) -> list[Any]:
    archive = package.get("archive")
    return [archive] if archive else package.get("wheels", [])


def _wheel(entry: Mapping[str, Any]) -> WheelFile:
    location = entry.get("url") or entry.get("path", "")
    name = entry.get("name") or unquote(Path(urlsplit(location).path).name)
    return WheelFile(
        filename=name,
        url=location,
        sha256=entry.get("hashes", {}).get("sha256"),
        size=entry.get("size"),
    )


def _project(
    target: Target,
    *,
    requirements: Sequence[str],
    named_index: str | None,
    from_named: Sequence[str],
    overrides: Sequence[str],
    constraints: Sequence[str],
) -> str:
    lines = [
        "[project]",
        'name = "cell"',
        'version = "0"',
        f'requires-python = ">={target.python}"',
        f"dependencies = {_strings(requirements)}",
        "[tool.uv]",
        f"override-dependencies = {_strings(overrides)}",
        f"constraint-dependencies = {_strings(constraints)}",
    ]
    if named_index:
        lines += [
            "[[tool.uv.index]]",
            'name = "named"',
            f"url = {_string(named_index)}",
            "explicit = true",
            "[tool.uv.sources]",
            *(f'{name} = {{ index = "named" }}' for name in from_named),
        ]
    return "\n".join(lines) + "\n"


def _string(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _strings(values: Sequence[str]) -> str:
    return "[" + ", ".join(map(_string, values)) + "]"


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that uv gets: the user's, without settings that change its answers."""
    kept = {
        key: value
        for key, value in environ.items()
        if not key.startswith("UV_") or _KEPT.fullmatch(key)
    }
    return {"UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "1", **kept, "NO_COLOR": "1"}


def configured_index() -> str | None:
    """Return the URL of the default index that uv or, failing that, pip is configured with."""
    return _uv_index() or pip_index()


@cache
def pip_index() -> str | None:
    """Return the index that pip is configured with, if uv is configured with none itself.

    uv does not read pip's configuration; companies often write only that.
    """
    if _uv_index():
        return None
    if url := os.environ.get("PIP_INDEX_URL"):
        return url
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or None if asked.returncode == 0 else None


def _uv_index() -> str | None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if url := os.environ.get(name):
            return url
    own = os.environ.get("UV_CONFIG_FILE")
    files = [Path(own)] if own else [user_config_path("uv") / "uv.toml", Path("/etc/uv/uv.toml")]
    return next(filter(None, map(_default_of, files)), None)


def _default_of(file: Path) -> str | None:
    """Return the default index that a uv.toml names."""
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    defaults = [entry["url"] for entry in settings.get("index", []) if entry.get("default")]
    return next(iter(defaults), settings.get("index-url"))


def _failure(stderr: str) -> CellError | IndexUnreachableError:
    if "No solution found" not in stderr and NETWORK_TROUBLE.search(stderr):
        return IndexUnreachableError(
            f"the package index does not answer: {_last_cause(stderr)}",
            fix="check the network and the index that uv and pip are configured with, run again",
        )
    if "No solution found" in stderr:
        return CellError(
            f"no wheels fit: {stderr}", fix="change the versions that the cell asks for"
        )
    return CellError(f"uv cannot resolve it: {stderr}", fix="correct what uv names")


def _last_cause(stderr: str) -> str:
    causes = [line.strip() for line in stderr.splitlines() if line.strip()]
    return " · ".join(causes[:1] + causes[-1:]) if len(causes) > 1 else "".join(causes)
