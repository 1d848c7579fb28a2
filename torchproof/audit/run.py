"""Audit something: take its facts, ask every rule. Used by the verb, the pipeline and users."""

from __future__ import annotations

from pathlib import Path

from torchproof.audit.imagefs import open_directory
from torchproof.audit.registry import RULES
from torchproof.audit.rules import evaluate
from torchproof.results import Finding


def audit_tree(root: Path) -> list[Finding]:
    """Audit an unpacked root or a virtual environment. Raises InputError if it is no directory."""
    return evaluate(RULES, open_directory(root))
