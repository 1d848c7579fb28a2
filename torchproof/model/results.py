"""What a run finds out: findings, probe results, evidence, verdicts. Pure values.

The types carry the rule that matters most: a verdict on an image cannot be made without evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """How a probe ended. A skip is never a pass."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"
    TIMEOUT = "timeout"
    HOST_FAULT = "host_fault"


class Level(StrEnum):
    """How serious a finding is. Only an `ERROR` of a required rule fails a cell."""

    PASS = "pass"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class State(StrEnum):
    """The verdict of a cell."""

    VERIFIED = "verified"
    FAILED = "failed"
    UNPROVEN = "unproven"
    BLOCKED = "blocked"
    UNAVAILABLE = "unavailable"
    EXCLUDED = "excluded"
    PLANNED = "planned"
    """Before a run only: the cell can be tried."""


MEANINGS: Mapping[State, str] = {
    State.VERIFIED: "every required audit rule and probe passed, on this digest",
    State.FAILED: "the image is at fault",
    State.UNPROVEN: "nothing failed, but a required probe could not run here",
    State.BLOCKED: "could not be tried here: an index, a registry or the host is at fault",
    State.UNAVAILABLE: "upstream publishes no such wheel",
    State.EXCLUDED: "left out by matrix.yaml",
    State.PLANNED: "can be tried; no run has reported on it yet",
}
"""What each verdict means, in the order in which people look for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of a host. `arch` is its compute capability as `sm_90`; memory in bytes."""

    model: str
    arch: str
    memory: int = 0
    uuid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where something ran."""

    engine: str
    """`docker 20.10.24`, `podman 4.3.1`, `venv`, `host`."""
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one audit rule found. `where` names the file (and line), `fix` the remedy."""

    rule: str
    level: Level
    message: str
    fix: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """How one probe ended on one cell.

    `code` is the probe's own short name for what happened (`ok`, `nccl_mismatch`, `no_json`);
    `metrics` are JSON values; `seconds` is wall-clock time.
    """

    name: str
    outcome: Outcome
    code: str
    seconds: float
    message: str = ""
    fix: str = ""
    required: bool = True
    metrics: Mapping[str, object] = field(default_factory=dict)
    host: Host | None = None
    log: str = ""
    """Path of the full log below the reports directory; empty if none."""


class SubjectKind(StrEnum):
    """What evidence is about."""

    IMAGE = "image"
    ENVIRONMENT = "environment"
    """A virtual environment of the `venv` engine, or the current Python (`--target host`)."""
    LOCK = "lock"
    """The cell failed before anything was built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a verdict rests on. `digest` is the subject's; `at` is an RFC 3339 time in UTC."""

    subject: SubjectKind
    digest: str
    suite_hash: str
    host: Host
    at: str
    audit: tuple[Finding, ...] = ()
    probes: tuple[ProbeResult, ...] = ()
    audited: bool = False
    """The audit was completed: an empty `audit` then means that nothing was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict on something that was tried: `verified`, `failed` or `unproven`."""

    state: State
    reason: str
    evidence: Evidence

    def __post_init__(self) -> None:
        if self.state not in (State.VERIFIED, State.FAILED, State.UNPROVEN):
            raise ValueError(f"{self.state} is not a verdict that evidence can give")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTried:
    """A verdict on something that was not, or could not be, tried: it needs only a reason."""

    state: State
    reason: str
    source: str = ""
    nearest: tuple[str, ...] = ()
    fix: str = ""
    evidence: Evidence | None = None
    """Partial evidence of a cell that became `blocked` because of a host fault."""

    def __post_init__(self) -> None:
        if self.state not in (State.BLOCKED, State.UNAVAILABLE, State.EXCLUDED, State.PLANNED):
            raise ValueError(f"{self.state} needs evidence")


Verdict = Judged | NotTried


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLayer:
    """One layer of a built image. `name` is a `LayerName` (`cuda`), sizes are bytes.

    `size` is compressed where the engine knows it, else unpacked; `digest` is `sha256:…`.
    """

    name: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a builder made from a lock: an image in an engine, an OCI layout, or an environment."""

    cell: str
    subject: SubjectKind
    ref: str
    """Image reference, or path of the environment or of the OCI layout."""
    digest: str
    size: int
    """Bytes on disk."""
    layers: tuple[ImageLayer, ...]
    plan_hash: str
    seconds: float
    reused: bool = False
    """Nothing had to be done: it already existed."""
