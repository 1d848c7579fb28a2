from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from torchproof.commands.asking.schema import run
from torchproof.errors import DriftError
from torchproof.matrix.schema import matrix_schema
from torchproof.upstream.facts import load_facts

ROOT = Path(__file__).parents[3]
SCHEMA = matrix_schema(load_facts())


def test_the_committed_schema_is_what_the_models_give() -> None:
    assert json.loads((ROOT / "matrix.schema.json").read_text(encoding="utf-8")) == SCHEMA


@pytest.mark.parametrize("file", ["matrix.yaml", "examples/nccl-override.yaml"])
def test_the_files_of_the_repository_follow_the_schema(file: str) -> None:
    data = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(data)


@pytest.mark.parametrize(
    "data",
    [
        {"torch": ["2.9"], "cuda": ["12.8"]},
        {"torch": ["2.9"], "cuda": ["cu128"], "nonsense": 1},
        {"torch": ["2.9"], "cuda": ["cu128"], "exclude": [{"cuda": "cu128"}]},
    ],
)
def test_the_schema_refuses_what_the_models_refuse(data: dict[str, object]) -> None:
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(data))


def test_the_schema_names_what_is_known_for_completion() -> None:
    text = json.dumps(SCHEMA)
    assert '"cu118"' in text
    assert '"2.9"' in text
    for name, field in SCHEMA["properties"].items():
        assert field.get("description") or "$ref" in json.dumps(field), name


def test_check_finds_drift_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DriftError):
        run(check=True)
    assert list(tmp_path.iterdir()) == []
    run(check=False)
    assert run(check=True) == 0
