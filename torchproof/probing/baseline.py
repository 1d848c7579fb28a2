"""Bandwidth against what the user recorded: a file, keyed by GPU model, count and transport.

    baselines:
      - {probe: allreduce_bandwidth, gpu: NVIDIA H200, count: 2, transport: NVLink, busbw_gbps: 340}

Without an entry a bandwidth is reported and not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from torchproof._yaml import load_yaml
from torchproof.errors import InputError
from torchproof.model.results import Outcome, ProbeResult

HEADER = "# Bandwidths that later runs are judged by. Written by `probe --record-baseline`.\n"


class Entry(BaseModel):
    """One recorded bus bandwidth, GB/s (10^9 bytes)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    probe: str
    gpu: str
    count: int = Field(ge=1)
    transport: str
    busbw_gbps: float = Field(gt=0, allow_inf_nan=False)
    nccl: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Recorded bandwidths, and how far below one a result may fall (0.1: ten per cent)."""

    entries: tuple[Entry, ...] = ()
    tolerance: float = 0.1


def read_baseline(path: Path, tolerance: float) -> Baseline:
    """Read a baseline file; a missing one is empty. Raises InputError if it cannot be read."""
    if not path.exists():
        return Baseline(tolerance=tolerance)
    try:
        data = load_yaml(path.read_text(encoding="utf-8")) or {}
        entries = tuple(Entry.model_validate(row) for row in data["baselines"])
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(f"a baseline's {key}: {first['msg']}", where=str(path)) from None
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise InputError(
            f"no baseline file: {error}", where=str(path), fix="record it again: --record-baseline"
        ) from None
    return Baseline(entries=entries, tolerance=tolerance)


def judge(result: ProbeResult, baseline: Baseline) -> ProbeResult:
    """Fail a bandwidth that is too far below its baseline; say what it was compared with."""
    found = _measured(result)
    if found is None or result.outcome is not Outcome.PASS:
        return result
    recorded = next((entry for entry in baseline.entries if _key(entry) == _key(found)), None)
    place = f"{found.count} × {found.gpu} by {found.transport}"
    if recorded is None:
        note = f"not judged: no baseline for {place}"
        return replace(result, message=f"{result.message}; {note}")
    share = found.busbw_gbps / recorded.busbw_gbps
    compared = f"{share:.0%} of the recorded {recorded.busbw_gbps:.4g} GB/s ({place})"
    if share >= 1 - baseline.tolerance:
        return replace(result, message=f"{result.message}; {compared}")
    return replace(
        result,
        outcome=Outcome.FAIL,
        code="slow",
        message=f"{found.busbw_gbps:.4g} GB/s is {compared}",
        fix="look at `transports` in the metrics; nvidia-smi topo -m and dmesg name a lost link",
    )


def record(results: Iterable[ProbeResult], path: Path, baseline: Baseline) -> int:
    """Write passed bandwidths into the file, each over its older entry; returns how many."""
    passed = [result for result in results if result.outcome is Outcome.PASS]
    measured = [entry for result in passed if (entry := _measured(result))]
    merged = {_key(entry): entry for entry in (*baseline.entries, *measured)}
    rows: Sequence[dict[str, Any]] = [
        merged[key].model_dump(exclude_none=True) for key in sorted(merged)
    ]
    text = yaml.safe_dump({"baselines": rows}, sort_keys=False, allow_unicode=True)
    path.write_text(HEADER + text, encoding="utf-8")
    return len(measured)


def _key(entry: Entry) -> tuple[str, str, int, str]:
    return entry.probe, entry.gpu, entry.count, entry.transport


def _measured(result: ProbeResult) -> Entry | None:
    metrics = result.metrics
    speed, ranks = metrics.get("busbw_gbps"), metrics.get("ranks")
    if not isinstance(speed, (int, float)) or not isinstance(ranks, int) or speed <= 0 or ranks < 2:
        return None
    nccl = metrics.get("backend") == "nccl"
    models = {gpu.model for gpu in result.host.gpus} if result.host and nccl else {"CPU"}
    return Entry(
        probe=result.name,
        gpu=" + ".join(sorted(models)),
        count=ranks,
        transport=str(metrics.get("transport", "unknown")) if nccl else "gloo",
        busbw_gbps=float(speed),
        nccl=str(metrics["nccl"]) if metrics.get("nccl") else None,
    )
