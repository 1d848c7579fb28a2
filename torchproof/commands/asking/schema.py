"""`schema`: write matrix.schema.json, with which editors complete and check matrix.yaml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from torchproof.errors import DriftError
from torchproof.matrix.schema import matrix_schema
from torchproof.upstream.facts import load_facts

SCHEMA = Path("matrix.schema.json")


def run(
    check: Annotated[bool, typer.Option("--check", help="Only compare; exit 1 on drift.")] = False,
) -> int:
    """Write matrix.schema.json from the models that read matrix.yaml."""
    text = json.dumps(matrix_schema(load_facts()), indent=2, ensure_ascii=False) + "\n"
    current = SCHEMA.read_text(encoding="utf-8") if SCHEMA.is_file() else ""
    if check and current != text:
        raise DriftError("the schema is out of date", where=str(SCHEMA), fix="run `make schema`")
    if current != text:
        SCHEMA.write_text(text, encoding="utf-8")
    return 0
