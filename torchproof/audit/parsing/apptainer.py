"""Apptainer (Singularity) definition → the same stages as a Dockerfile. Pure."""

from __future__ import annotations

import re

from torchproof.audit.parsing.dockerfile import Dockerfile, Instruction, Stage


def parse_definition(text: str, path: str) -> Dockerfile:
    """Read an Apptainer (Singularity) definition: its base, and `%post` as one RUN."""
    head = re.search(r"^\s*from:\s*(\S+)", text, re.IGNORECASE | re.MULTILINE)
    post = re.search(r"^%post[^\n]*\n(.*?)(?=^%\w|\Z)", text, re.DOTALL | re.MULTILINE)
    steps: tuple[Instruction, ...] = ()
    if post is not None:
        line = text[: post.start(1)].count("\n") + 1
        steps = (Instruction(name="RUN", value=post[1], line=line),)
    base = head[1] if head else ""
    stage = Stage(
        index=0,
        name="",
        written=base,
        base=base,
        line=text[: head.start(1)].count("\n") + 1 if head else 1,
        instructions=steps,
    )
    return Dockerfile(path=path, stages=(stage,), args={})
