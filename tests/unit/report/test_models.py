from __future__ import annotations

import json
import os

import jsonschema
import pytest
from pydantic import ValidationError

from tests.unit.report.report_samples import default_cells, every_verdict
from torchproof.model.results import State
from torchproof.report.files import report_json
from torchproof.report.models import SCHEMA_FILE, CellModel, ReportModel, schema_text


def test_the_committed_schema_matches_the_models() -> None:
    if os.environ.get("TORCHPROOF_UPDATE_GOLDEN"):
        SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text()


def test_a_report_conforms_to_the_schema() -> None:
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(report_json(every_verdict())), schema)


def test_a_report_reads_back_as_it_was_written() -> None:
    report = every_verdict()
    assert ReportModel.model_validate_json(report_json(report)) == report


def test_the_report_keeps_the_contract_of_its_field_names() -> None:
    data = json.loads(report_json(every_verdict()))
    assert {"schema", "generated_at", "suite_hash", "host", "cells"} <= set(data)
    assert {"driver", "gpus", "engine"} <= set(data["host"])
    cell = next(one for one in data["cells"] if one["id"] == "2.9.1-cu128-py311")
    assert {
        "id", "torch", "cuda", "cudnn", "nccl", "python", "verdict", "reason", "source", "nearest",
        "image", "audit", "probes",
    } <= set(cell)  # fmt: skip
    assert {"ref", "digest", "size_bytes", "layers"} <= set(cell["image"])
    assert set(cell["image"]["layers"][0]) == {"digest", "size_bytes", "name"}
    assert {
        "name", "outcome", "code", "seconds", "metrics", "message", "fix", "host",
    } <= set(cell["probes"][0])  # fmt: skip
    failed = next(one for one in data["cells"] if one["audit"])
    assert set(failed["audit"][0]) == {"rule", "outcome", "message", "fix", "where"}


@pytest.mark.parametrize("state", [State.VERIFIED, State.FAILED, State.UNPROVEN])
def test_a_tried_verdict_without_evidence_is_refused(state: State) -> None:
    data = default_cells()[2].model_dump() | {"verdict": state, "evidence": None}
    with pytest.raises(ValidationError, match="evidence"):
        CellModel.model_validate(data)


def test_a_verified_cell_whose_evidence_is_of_another_image_is_refused() -> None:
    data = default_cells()[2].model_dump()
    assert data["verdict"] is State.VERIFIED
    data["evidence"]["digest"] = "sha256:other"
    with pytest.raises(ValidationError, match="not about its image"):
        CellModel.model_validate(data)


def test_planned_is_not_a_verdict() -> None:
    data = default_cells()[0].model_dump() | {"verdict": State.PLANNED}
    with pytest.raises(ValidationError, match="before a run"):
        CellModel.model_validate(data)


def test_numbers_that_json_cannot_express_become_null() -> None:
    data = every_verdict().model_dump(by_alias=True)
    data["cells"][0]["probes"] = [
        {
            "name": "p",
            "outcome": "pass",
            "code": "ok",
            "seconds": 1,
            "host": data["host"],
            "metrics": {"loss": float("nan"), "deep": [{"x": float("inf")}]},
        }
    ]
    text = report_json(ReportModel.model_validate(data))
    assert "NaN" not in text and "Infinity" not in text


def test_images_share_the_bytes_of_equal_layers() -> None:
    report = every_verdict()
    by_id = {cell.id: cell.image for cell in report.cells}
    plain, override = by_id["2.9.1-cu128-py311"], by_id["2.9.1-cu128-py311-nccl2.30.7"]
    assert plain and override
    same = {layer.name for layer in plain.layers} & {
        layer.name
        for layer in override.layers
        if layer.digest in {own.digest for own in plain.layers}
    }
    assert same == {"base", "python", "cuda", "cudnn", "torch"}
    sharing = report.sharing
    assert sharing.images == 5
    assert sharing.total_bytes == sharing.stored_bytes + sharing.shared_bytes
    assert sharing.shared_bytes > 3_000_000_000
