"""From an index to what is built: all six published cells and one from a wheelhouse."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import yaml

from tests.fakeindex import FakeIndex, make_torch, published_wheels
from tests.integration.needs import needs
from torchproof.cli import main
from torchproof.engines import docker as engine_module
from torchproof.upstream.facts import Build, load_facts

FACTS = load_facts()
CELLS = {
    *("2.7.1-cu118-py311", "2.7.1-cu126-py311", "2.7.1-cu128-py311"),
    *("2.9.1-cu126-py311", "2.9.1-cu128-py311", "2.9.1-cu130-py311", "2.9.1-cu121-py311"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Lay out a matrix of seven cells, lock and generate them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    own = make_torch(
        FACTS.releases["2.9.1"],
        Build(cuda="cu121", platforms=(), confirmed=True, sources=(), triton="3.5.1"),
        local="+cu121",
    )
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / own.filename).write_bytes(own.data)
    with FakeIndex(published_wheels(FACTS)) as index:
        matrix = {
            "torch": ["2.7", "2.9"],
            "cuda": ["cu118", "cu126", "cu128", "cu130"],
            "options": {"compile": False},
            "cells": [{"torch": "2.9", "cuda": "cu121", "wheelhouse": "own"}],
            "indexes": index.urls,
        }
        (tmp_path / "matrix.yaml").write_text(yaml.safe_dump(matrix), encoding="utf-8")
        assert main(["lock"]) == 0
        assert main(["generate"]) == 0
        yield tmp_path


def test_every_cell_has_its_lock_and_its_dockerfile(folder: Path) -> None:
    assert {path.parent.name for path in folder.glob("images/*/lock.yaml")} == CELLS
    assert {path.parent.name for path in folder.glob("images/*/Dockerfile")} == CELLS
    assert main(["generate", "--check"]) == 0


def test_every_cell_becomes_an_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHPROOF_CACHE", str(folder / "cache"))
    assert main(["build", "--engine", "venv"]) == 0
    told = capsys.readouterr().out
    assert {name for name in CELLS if f"{name}: environment" in told} == CELLS


@needs("docker")
@needs("bootstrap")
def test_every_cell_becomes_an_image(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = f"localhost/torchproof-test-{uuid.uuid4().hex[:8]}"
    monkeypatch.setattr(engine_module, "REPOSITORY", repository)
    client = docker.from_env()
    try:
        assert main(["build", "--engine", "docker"]) == 0
        images = {tag for image in client.images.list(repository) for tag in image.tags}
        assert {tag.rpartition(":")[2] for tag in images} == CELLS
        assert "saved by shared layers" in capsys.readouterr().out
    finally:
        for image in client.images.list(repository):
            client.images.remove(image.id, force=True)


def test_a_cell_changed_in_the_matrix_is_planned_anew(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (folder / "matrix.yaml").read_text()
    (folder / "matrix.yaml").write_text(text.replace("compile: false", "compile: true"))
    capsys.readouterr()
    assert main(["plan", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    reasons = [cell["reason"] for cell in cells if cell["state"] == "planned"]
    assert len(reasons) == 7
    assert all("out of date" in reason for reason in reasons)
