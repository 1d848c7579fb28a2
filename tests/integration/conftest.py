"""What all integration tests share."""

from __future__ import annotations

import pytest

from tests.integration.needs import enforce


def pytest_runtest_setup(item: pytest.Item) -> None:
    enforce(item)
