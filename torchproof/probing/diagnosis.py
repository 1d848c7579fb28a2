"""What known messages mean: a table of patterns, as data with sources (upstream/data/)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from torchproof.upstream.data_files import read_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One known fault. `host_fault`: the machine is at fault and the image is not."""

    code: str
    message: str
    fix: str
    host_fault: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of the table: what it says, and the patterns of which any one is enough."""

    diagnosis: Diagnosis
    patterns: tuple[re.Pattern[str], ...]


@cache
def table() -> tuple[Entry, ...]:
    """Read the table, in its order: the first row that matches wins."""
    return tuple(_entry(row) for row in read_data("diagnosis")["diagnoses"])


def diagnose(text: str) -> Diagnosis | None:
    """Name the fault that a log shows; None if no row matches."""
    for entry in table():
        for pattern in entry.patterns:
            match = pattern.search(text)
            if match:
                return _filled(entry.diagnosis, match)
    return None


def by_code(code: str) -> Diagnosis | None:
    """Return the row with this code: a probe that names the fault itself needs no pattern."""
    return next((e.diagnosis for e in table() if e.diagnosis.code == code), None)


def _entry(row: dict[str, Any]) -> Entry:
    return Entry(
        diagnosis=Diagnosis(
            code=row["code"],
            message=row["message"],
            fix=row["fix"],
            host_fault=row.get("host_fault", False),
            source=row["source"],
        ),
        patterns=tuple(re.compile(pattern) for pattern in row.get("match", ())),
    )


def _filled(diagnosis: Diagnosis, match: re.Match[str]) -> Diagnosis:
    """Put the pattern's named groups into the texts."""
    groups = {name: value or "?" for name, value in match.groupdict().items()}

    def fill(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: groups.get(found[1], "?"), text)

    return Diagnosis(
        code=diagnosis.code,
        message=fill(diagnosis.message),
        fix=fill(diagnosis.fix),
        host_fault=diagnosis.host_fault,
        source=diagnosis.source,
    )
