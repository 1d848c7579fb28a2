"""Values of a report as text for people: sizes, times, digests, outcomes. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from torchproof.model.results import MEANINGS, Level, Outcome, State
from torchproof.report.models import HostModel
from torchproof.upstream.host_fit import Fit

VERDICTS: Mapping[State, str] = {
    state: f"{meaning[0].upper()}{meaning[1:]}."
    for state, meaning in MEANINGS.items()
    if state is not State.PLANNED
}
"""The verdicts of a report, and what each means."""

OUTCOMES: Mapping[Outcome, str] = {
    Outcome.PASS: "pass",
    Outcome.FAIL: "fail",
    Outcome.SKIP: "skip",
    Outcome.TIMEOUT: "timeout",
    Outcome.HOST_FAULT: "host fault",
}

LEVELS = (Level.ERROR, Level.WARNING, Level.NOTE, Level.PASS)

ANSWERS: Mapping[Fit, str] = {
    Fit.YES: "yes",
    Fit.MINOR: "yes, by minor-version compatibility",
    Fit.FORWARD: "needs forward compatibility",
    Fit.NO: "no",
    Fit.UNKNOWN: "unknown",
}

_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def clean(text: str) -> str:
    """Replace control and bidi characters: they could mislead a terminal, XML parser or reader.

    Text of probes and logs is not trusted. Tabs and line ends stay.
    """
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return clean text on one line."""
    return " ".join(clean(text).split())


def size(count: int) -> str:
    """`7204118733` → `7.2 GB`; decimal units, as registries and wheels count."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit in ("B", "kB") else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def duration(seconds: float) -> str:
    """`3.24` → `3.2 s`, `192` → `3 min 12 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def moment(at: str) -> str:
    """`2026-11-30T09:41:07Z` → `2026-11-30 09:41 UTC`; anything else stays as it is."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::\d\d(?:\.\d+)?)?(?:Z|\+00:00)", at)
    return f"{match[1]} {match[2]} UTC" if match else at


def short(digest: str) -> str:
    """`sha256:` and the first 12 digits."""
    algorithm, _, rest = digest.partition(":")
    return f"{algorithm}:{rest[:12]}" if rest else digest[:12]


def gpus(host: HostModel) -> str:
    """`2 × NVIDIA H200`, `no GPU`."""
    counts: dict[str, int] = {}
    for gpu in host.gpus:
        counts[gpu.model] = counts.get(gpu.model, 0) + 1
    return ", ".join(f"{n} × {model}" for model, n in counts.items()) or "no GPU"


def machine(host: HostModel) -> str:
    """`docker 28.3.3, driver 570.172.08, 2 × NVIDIA H200`."""
    return f"{host.engine}, {f'driver {host.driver}' if host.driver else 'no driver'}, {gpus(host)}"


def order(version: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key: numbers as numbers, so that 2.10 comes after 2.9."""
    return tuple(
        (0, int(part)) if part.isdigit() else (1, part)
        for part in re.findall(r"\d+|[^\d.]+", version)
    )


def value(metric: object) -> str:
    """Return a metric's value as text; numbers with 4 significant digits."""
    match metric:
        case bool():
            return "yes" if metric else "no"
        case float():
            return f"{metric:.4g}"
        case str() | int():
            return str(metric)
        case None:
            return "–"
        case _:
            return json.dumps(metric, ensure_ascii=False, default=str)


def table(metric: object) -> tuple[list[str], list[list[str]]] | None:
    """Return a metric that is a list of flat objects as header and rows; None for anything else."""
    if not isinstance(metric, Sequence) or isinstance(metric, str) or not metric:
        return None
    rows = [row for row in metric if isinstance(row, Mapping)]
    if len(rows) != len(metric):
        return None
    header = list(dict.fromkeys(str(key) for row in rows for key in row))
    return header, [[value(row.get(key)) for key in header] for row in rows]
