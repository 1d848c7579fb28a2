"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchproof.engines.engine import BUILDERS, ENGINES

Only = Annotated[
    str | None,
    typer.Option("--only", metavar="GLOB", help="Only these cells: 2.9*, *-cu128-*, 2.9.1-cu128."),
]
MatrixFile = Annotated[
    Path, typer.Option("--matrix", metavar="FILE", help="The matrix file.", show_default=True)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
EngineName = Annotated[
    str,
    typer.Option("--engine", help=f"One of {', '.join(ENGINES)}; docker may be Podman's socket."),
]
BuilderName = Annotated[
    str,
    typer.Option(
        "--builder",
        help=f"One of {', '.join(BUILDERS)}; assemble makes images from wheels, without a daemon.",
    ),
]
