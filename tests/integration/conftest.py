"""What all integration tests share."""

from __future__ import annotations

import pytest

from tests.integration.fixtures_engine import (
    bench,
    docker_engine,
    podman_engine,
    real_engine,
    real_environment,
    room,
)
from tests.integration.needs import enforce

__all__ = ["bench", "docker_engine", "podman_engine", "real_engine", "real_environment", "room"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    enforce(item)
