"""The house keeps its shape: small rooms, short modules, imports that go one way."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "torchproof"
ROOMS = sorted({file.parent for file in PACKAGE.rglob("*.py")})


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_a_room_holds_few_modules(room: Path) -> None:
    most = 8 if room == PACKAGE else 16
    assert len(list(room.glob("*.py"))) <= most


def test_no_module_is_long() -> None:
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines())
        for file in PACKAGE.rglob("*.py")
    }
    assert {name: length for name, length in lengths.items() if length > 300} == {}


def contract() -> list[str]:
    """Return the rooms of the contract, top to bottom."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (rooms,) = [one for one in data["tool"]["importlinter"]["contracts"] if one["id"] == "rooms"]
    return [name for layer in rooms["layers"] for name in layer.split(" | ")]


def test_the_document_shows_every_room_in_the_order_of_the_contract() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = text.split("## Rooms", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    shown = [name.rstrip("/") for row in rows for name in re.findall(r"`([\w/]+)`", row)]
    assert [name for name in shown if "/" not in name] == contract()


@pytest.mark.parametrize("document", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_document_names_what_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = re.findall(r"`((?:[\w.]+/)+[\w.*]*)`", text)
    places = [ROOT, PACKAGE]
    missing = [
        name
        for name in named
        if not re.search(r"[A-Z]{3}", name) and not any([*place.glob(name)] for place in places)
    ]
    assert missing == []
    dotted = re.findall(r"`((?:\w+\.)+\w+)`", text)
    for name in dotted:
        module, _, attribute = name.rpartition(".")
        file = (PACKAGE / module.replace(".", "/")).with_suffix(".py")
        if attribute != "py" and not (ROOT / name).exists() and file.is_file():
            assert hasattr(importlib.import_module(f"torchproof.{module}"), attribute), name


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(folder), "COLUMNS": "200"},
    )


@pytest.mark.parametrize(
    ("module", "planted"),
    [
        ("model/cell.py", "torchproof.matrix.schema"),
        ("upstream/gpus.py", "torchproof.index.uv"),
        ("_http.py", "torchproof.index.uv"),
        ("assemble/layer_facts.py", "torchproof.engines.select"),
        ("report/words.py", "torchproof.run.pipeline"),
    ],
)
def test_an_import_that_goes_up_is_refused(tmp_path: Path, module: str, planted: str) -> None:
    shutil.copytree(PACKAGE, tmp_path / "torchproof", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert lint_imports(tmp_path).returncode == 0
    with (tmp_path / "torchproof" / module).open("a", encoding="utf-8") as file:
        file.write(f"\nimport {planted}  # noqa\n")
    refused = lint_imports(tmp_path)
    assert refused.returncode == 1
    assert planted in refused.stdout
