"""The installed pytest and xdist keep a group on one worker: the cells of probes need it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("cell", ["2.7.1-cu126", "2.9.1-cu128"])
def test_probe(cell, number):
    pass

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.xdist_group(item.callspec.params["cell"]))
"""


def test_a_group_stays_on_one_worker(tmp_path: Path) -> None:
    for name in ("conftest.py", "test_probes.py"):
        (tmp_path / name).write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "loadgroup", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    dealt = re.findall(r"\[(gw\d)\].* PASSED \S+\[(2\.\d\.1)", done.stdout)
    assert len(dealt) == 16, done.stdout
    assert len(set(dealt)) == 2
