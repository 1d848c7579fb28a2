"""Audit a Dockerfile, a launch file, or a folder of such."""

from __future__ import annotations

from pathlib import Path

from torchproof.audit.catalogue import RULES
from torchproof.audit.facts import ImageFacts, Subject
from torchproof.audit.parsing.texts import TextKind, collect, kind_of
from torchproof.audit.rule import evaluate
from torchproof.errors import InputError
from torchproof.model.results import Finding


def audit_texts(place: Path) -> list[Finding]:
    """Return the findings on one file, or on every Dockerfile and recipe of a folder.

    Raises InputError if the file cannot be read, or there is nothing that a rule would read.
    """
    texts = tuple(text for text in collect(place) if kind_of(text) is not TextKind.OTHER)
    if not texts:
        raise InputError(
            "is no Dockerfile, requirements file, manifest or job script"
            if not place.is_dir()
            else "holds no Dockerfile, requirements file, manifest or job script",
            where=str(place),
            fix="name it Dockerfile, *.sh, *.sbatch, *.yaml or requirements.txt",
        )
    return evaluate(RULES, ImageFacts(name=str(place), subject=Subject.TEXTS, texts=texts))
