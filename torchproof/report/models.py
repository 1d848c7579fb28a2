"""The versioned format of reports/report.json; `report.schema.json` is generated from it.

The field names are a contract with scripts and dashboards: fields may be added within a schema
version, never renamed or removed. Sizes are bytes, durations seconds, times RFC 3339 in UTC.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from torchproof.model.platforms import AMD64
from torchproof.model.results import Level, Outcome, State, SubjectKind
from torchproof.upstream.host_fit import Fit

SCHEMA_VERSION: Literal["torchproof/report/1"] = "torchproof/report/1"
SCHEMA_FILE = Path(__file__).with_name("report.schema.json")


def _not_planned(state: State) -> State:
    if state is State.PLANNED:
        raise ValueError("a report holds verdicts; `planned` is the state before a run")
    return state


VerdictState = Annotated[State, AfterValidator(_not_planned)]


MAX_DEPTH = 32
"""Deepest nesting of metrics that a report keeps; every JSON reader can handle that."""


def _writable(value: Any, depth: int = 0) -> Any:
    """Return data that every JSON reader accepts, whatever a probe printed.

    Lone surrogates become "?", NaN and infinity None, nesting beyond `MAX_DEPTH` "…".
    """
    if depth > MAX_DEPTH:
        return "…"
    match value:
        case str():
            return _encodable(value)
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {_encodable(str(k)): _writable(item, depth + 1) for k, item in value.items()}
        case list() | tuple():
            return [_writable(item, depth + 1) for item in value]
        case _:
            return value


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _make_text_encodable(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {k: _encodable(v) if type(v) is str else v for k, v in data.items()}


class GpuModel(_Model):
    """One GPU: its model name, compute capability (`sm_90`) and memory."""

    model: str
    arch: str
    memory_bytes: int = 0


class HostModel(_Model):
    """Where something ran."""

    engine: str
    driver: str | None = None
    gpus: list[GpuModel] = []


class LayerModel(_Model):
    """One layer of an image. `size_bytes` is compressed where the engine knows it."""

    name: str
    digest: str
    size_bytes: int = Field(ge=0)


class ImageModel(_Model):
    """The image that a verdict is about."""

    ref: str
    digest: str
    size_bytes: int = Field(ge=0)
    layers: list[LayerModel] = []


class EnvironmentModel(_Model):
    """The virtual environment that a verdict is about, where no image was built."""

    path: str
    digest: str
    size_bytes: int = Field(ge=0)


class BuildModel(_Model):
    """How the image or environment was built. `reused`: it already existed."""

    seconds: float = Field(ge=0)
    reused: bool = False
    plan_hash: str
    log: str = ""


class FindingModel(_Model):
    """What one audit rule found."""

    rule: str
    outcome: Level
    message: str
    fix: str = ""
    where: str = ""


class ProbeModel(_Model):
    """How one probe ended on one host. `log` is a path below the reports directory."""

    name: str
    outcome: Outcome
    code: str
    seconds: float = Field(ge=0, allow_inf_nan=False)
    metrics: Annotated[dict[str, Any], BeforeValidator(_writable)] = {}
    message: str = ""
    fix: str = ""
    host: HostModel
    required: bool = True
    log: str = ""


class EvidenceModel(_Model):
    """What a verdict is bound to. The audit and the probes are beside it in the cell."""

    subject: SubjectKind
    digest: str
    suite_hash: str
    host: HostModel
    at: str
    audited: bool


class OtherEvidenceModel(EvidenceModel):
    """Evidence on another digest, or of another probe suite: shown, and never counted."""

    audit: list[FindingModel] = []
    probes: list[ProbeModel] = []
    failures: list[str] = []
    """Why runs on this digest failed."""
    why: str = ""
    """Why it does not count."""


class RequiredProbeModel(_Model):
    """A probe that the cell must pass, and the GPUs it needs for that."""

    name: str
    gpus: int = Field(default=0, ge=0)


class PolicyModel(_Model):
    """What the cell had to prove when it was judged."""

    probes: list[RequiredProbeModel] = []
    rules: list[str] = ["*"]
    ignored: list[str] = []


class OverrideModel(_Model):
    """A wheel that replaces the one torch pins."""

    name: str
    pinned: str
    chosen: str


class CellModel(_Model):
    """One cell and its verdict. `cuda` is as in wheel names (`cu128`); null means not locked."""

    id: str
    torch: str
    cuda: str
    cudnn: str | None = None
    nccl: str | None = None
    triton: str | None = None
    python: str
    platform: str = AMD64
    gpus: list[str] = []
    """The only architectures that a slim image supports."""
    archs: list[str] = []
    driver_floor: str = ""
    verdict: VerdictState
    reason: str
    fix: str = ""
    source: str = ""
    nearest: list[str] = []
    notes: list[str] = []
    overrides: list[OverrideModel] = []
    lock_digest: str = ""
    image: ImageModel | None = None
    environment: EnvironmentModel | None = None
    build: BuildModel | None = None
    evidence: EvidenceModel | None = None
    policy: PolicyModel = PolicyModel()
    audit: list[FindingModel] = []
    probes: list[ProbeModel] = []
    other_evidence: list[OtherEvidenceModel] = []

    @model_validator(mode="after")
    def _rests_on_evidence(self) -> Self:
        if self.evidence is None and self.verdict in (
            State.VERIFIED,
            State.FAILED,
            State.UNPROVEN,
        ):
            raise ValueError(f"{self.id} is {self.verdict} without evidence")
        if self.verdict is State.VERIFIED and (
            self.image is None or self.evidence is None or self.image.digest != self.evidence.digest
        ):
            raise ValueError(f"{self.id} is verified, but its evidence is not about its image")
        return self


class AnswerModel(_Model):
    """Whether one cell's image runs on one declared host, by which rule, and what would help."""

    cell: str
    answer: Fit
    rule: str = ""
    reason: str = ""
    source: str = ""
    change: list[str] = []


class DeclaredHostModel(_Model):
    """A host that matrix.yaml declares, and the answer for every cell."""

    name: str
    driver: str = ""
    gpu: str = ""
    count: int = Field(default=1, ge=0)
    answers: list[AnswerModel] = []


class SharingModel(_Model):
    """Bytes of all images' layers: `total_bytes` counts every use, `stored_bytes` each once."""

    images: int = 0
    total_bytes: int = 0
    stored_bytes: int = 0
    shared_bytes: int = 0


class ReportModel(_Model):
    """A whole run, or several merged."""

    model_config = ConfigDict(title="torchproof report")

    schema_: Literal["torchproof/report/1"] = Field(alias="schema", default=SCHEMA_VERSION)
    generated_at: str
    suite_hash: str
    host: HostModel
    machines: list[HostModel] = []
    """Every machine whose results are in this report."""
    cells: list[CellModel]
    hosts: list[DeclaredHostModel] = []
    sharing: SharingModel = SharingModel()
    notes: list[str] = []


def schema_text() -> str:
    """Return the JSON Schema, which `SCHEMA_FILE` must equal."""
    return json.dumps(ReportModel.model_json_schema(), indent=2, sort_keys=True) + "\n"
