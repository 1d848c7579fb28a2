"""Real parts that integration tests need; a missing one is a skip, and in CI a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

REQUIRE = "TORCHPROOF_REQUIRE"
"""`all`, or names separated by commas: what must be there, so that its absence is a failure."""


def _docker() -> str:
    import docker
    from docker.errors import DockerException

    try:
        docker.from_env(timeout=10).ping()
    except DockerException as error:
        return f"no Docker Engine answers: {error}"
    return ""


def _program(*names: str) -> Callable[[], str]:
    def check() -> str:
        search = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        missing = [name for name in names if not shutil.which(name, path=search)]
        return f"not installed: {', '.join(missing)}" if missing else ""

    return check


def _network() -> str:
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    asked = subprocess.run(
        [uv, "pip", "compile", "--no-deps", "--quiet", "-"],
        input="packaging==24.2\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return "" if asked.returncode == 0 else f"the package index does not answer: {asked.stderr}"


def _gpu() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"no NVIDIA GPU: {error}"
    return ""


CHECKS: dict[str, Callable[[], str]] = {
    "docker": _docker,
    "podman": _program("podman", "runc"),
    "registry": _program("docker-registry"),
    "slurm": _program("slurmctld", "slurmd", "munged", "srun"),
    "chromium": _program("chromium", "chromedriver"),
    "bootstrap": _program("mmdebstrap"),
    "network": _network,
    "gpu": _gpu,
}


@cache
def missing(name: str) -> str:
    """Return why a part is missing; an empty string if it is there."""
    return CHECKS[name]()


def required(name: str) -> bool:
    """Tell whether the absence of a part must fail the run. A GPU is never required."""
    asked = os.environ.get(REQUIRE, "")
    return name != "gpu" if asked == "all" else name in asked.split(",")


def needs(name: str) -> pytest.MarkDecorator:
    """Mark a test (or a module, as `pytestmark`) with a part that it needs."""
    assert name in CHECKS
    return getattr(pytest.mark, name)  # type: ignore[no-any-return]


def enforce(item: pytest.Item) -> None:
    """Skip or fail a test whose marked parts are missing."""
    for name in CHECKS:
        if item.get_closest_marker(name) is None:
            continue
        reason = missing(name)
        if reason and required(name):
            pytest.fail(f"{REQUIRE} asks for {name}: {reason}", pytrace=False)
        elif reason:
            pytest.skip(f"{name}: {reason}")
