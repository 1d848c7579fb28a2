"""What can go wrong: one class and one exit code per kind. Only `torchproof.cli.main` catches them.

A message says what is wrong and where; `fix` says what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line (docs/architecture.md)."""

    OK = 0
    CELL_FAILED = 1
    USAGE = 2
    ENVIRONMENT = 3
    NOT_PROVEN = 4
    INTERRUPTED = 130


class TorchproofError(Exception):
    """Anything that torchproof can explain to its user."""

    exit_code: Exit = Exit.ENVIRONMENT

    def __init__(self, message: str, *, fix: str = "", where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.where = where

    def __str__(self) -> str:
        prefix = f"{self.where}: " if self.where else ""
        suffix = f"\n  fix: {self.fix}" if self.fix else ""
        return f"{prefix}{self.message}{suffix}"


class InputError(TorchproofError):
    """The user's input is wrong: matrix.yaml, an option, a name."""

    exit_code = Exit.USAGE


class CellError(TorchproofError):
    """One cell is at fault (its lock, wheel, build or image); the other cells go on."""

    exit_code = Exit.CELL_FAILED


class DriftError(TorchproofError):
    """A generated, committed file differs from what its source generates."""

    exit_code = Exit.CELL_FAILED


class HostError(TorchproofError):
    """The machine is at fault: no engine, disk full, tool missing. A cell becomes `blocked`."""

    exit_code = Exit.ENVIRONMENT


class IndexUnreachableError(HostError):
    """A package index does not answer. A cell becomes `blocked`."""


class RegistryError(HostError):
    """A container registry does not answer, or answers with an error."""


class IntegrityError(CellError):
    """Bytes do not have the expected digest or size."""


class EvidenceError(TorchproofError):
    """Evidence is missing or altered, or does not cover what was asked."""

    exit_code = Exit.CELL_FAILED


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return "did you mean `x`?" for the nearest known name; an empty string if none is close."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return f"did you mean `{close[0]}`?" if close else ""
