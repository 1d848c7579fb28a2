"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Only = Annotated[
    str | None,
    typer.Option("--only", metavar="GLOB", help="Only these cells: 2.9*, *-cu128-*, 2.9.1-cu128."),
]
MatrixFile = Annotated[
    Path, typer.Option("--matrix", metavar="FILE", help="The matrix file.", show_default=True)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
