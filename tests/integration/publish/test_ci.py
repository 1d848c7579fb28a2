"""`make ci-local`: the CI steps, cell by cell, give the same report as one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakeindex import FakeIndex, published_wheels
from tests.integration.needs import needs
from tests.integration.run.test_matrix import NO_TORCH, Desk
from torchproof.index.indexes import cache_dir
from torchproof.upstream.facts import load_facts

pytestmark = needs("network")
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("engine", ["venv", pytest.param("docker", marks=needs("docker"))])
def test_merged_shards_equal_the_report_of_one_run(tmp_path: Path, engine: str) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "bases").symlink_to(cache_dir() / "bases")
    folder = tmp_path / "desk"
    folder.mkdir()
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    with FakeIndex(published_wheels(load_facts())) as index:
        desk = Desk(folder=folder, index=index)
        desk.write(
            torch=["2.9"],
            cuda=["cu118", "cu126", "cu128"],
            audit={"required": ["recipe.yaml"]},
            # What a made torch answers to the other probes depends on which rank is first.
            probes={"required": NO_TORCH[:1], "optional": NO_TORCH[1:]},
        )
        env = {"TORCHPROOF_CACHE": str(cache), "UV_CACHE_DIR": str(tmp_path / "uv")}
        whole, told = desk.run("matrix", "--engine", engine, "--reports", "whole", **env)
        assert whole in (0, 1), told
        done = subprocess.run(
            [sys.executable, ROOT / "ci/local.py", "--compare", "whole", "--", "--engine", engine],
            cwd=folder,
            env=os.environ | env,
            capture_output=True,
            text=True,
            check=False,
        )
    assert "the shards give the report of the whole run" in done.stdout, done.stdout + done.stderr
    assert done.returncode == whole
    merged = json.loads((folder / "reports/report.json").read_text())
    assert {cell["id"] for cell in merged["cells"]} == {
        "2.9.1-cu118-py311",
        "2.9.1-cu126-py311",
        "2.9.1-cu128-py311",
    }
