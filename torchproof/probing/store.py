"""Results on disk, so that a second run does only what is missing.

One file a cell, `reports/cells/<id>/probes.json`: a key and the results that hold under it. The
key names everything a result depends on; another key voids the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock

from torchproof.model.results import Gpu, Host, Outcome, ProbeResult

FINAL = frozenset({Outcome.PASS, Outcome.SKIP})
"""Outcomes that need not be tried again under the same key."""


class ProbeStore:
    """The results of one cell. Safe between processes (pytest's workers)."""

    def __init__(self, reports: Path, cell: str, key: Mapping[str, object]) -> None:
        self.folder = reports / "cells" / cell
        self.reports = reports
        self.path = self.folder / "probes.json"
        self.key = json.loads(json.dumps(key))
        self._lock = FileLock(self.folder / ".probes.lock")

    def load(self) -> dict[str, ProbeResult]:
        """Return the results that hold under the key, by name. An unreadable file holds none."""
        try:
            data = json.loads(self.path.read_text())
            if data["key"] != self.key:
                return {}
            return {row["name"]: result_from(row) for row in data["results"]}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def save(self, result: ProbeResult) -> None:
        """Add or replace one result."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock:
            results = self.load() | {result.name: result}
            rows = [asdict(results[name]) for name in sorted(results)]
            partial = self.path.with_suffix(".partial")
            partial.write_text(json.dumps({"key": self.key, "results": rows}, indent=1))
            partial.replace(self.path)

    def write_log(self, name: str, text: str) -> str:
        """Keep the full output of a probe; returns its path below the reports directory."""
        folder = self.folder / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.log"
        path.write_text(text)
        return os.fspath(path.relative_to(self.reports))


def result_from(row: Mapping[str, Any]) -> ProbeResult:
    """Read a result back from JSON. Raises KeyError, TypeError or ValueError if it is not one."""
    values = dict(row)
    values["outcome"] = Outcome(values["outcome"])
    if values.get("host"):
        host = dict(values["host"])
        host["gpus"] = tuple(Gpu(**gpu) for gpu in host["gpus"])
        values["host"] = Host(**host)
    return ProbeResult(**values)


def read_results(path: Path) -> Sequence[ProbeResult]:
    """Read all results of a `probes.json`. Raises as `result_from`, and OSError."""
    return [result_from(row) for row in json.loads(path.read_text())["results"]]
