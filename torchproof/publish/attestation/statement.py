"""What is signed about an image: an in-toto statement whose predicate is a cell of the report.

Formats: in-toto Statement v1 (github.com/in-toto/attestation, spec/v1/statement.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from torchproof.errors import EvidenceError
from torchproof.model.digests import canonical_json
from torchproof.model.results import Outcome, State
from torchproof.report.models import CellModel, ReportModel

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:torchproof:evidence:v1"
PREDICATE_SCHEMA = "torchproof/evidence/1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"


class _Model(BaseModel):
    # Evidence of a newer version may have more fields than this one reads; those it reads must fit.
    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class SubjectModel(_Model):
    """What a statement is about: `digest` holds `sha256` of an image's manifest."""

    name: str
    digest: dict[str, str]


class GpuRead(_Model):
    """One GPU of a host."""

    model: str
    arch: str = ""


class HostRead(_Model):
    """Where something ran."""

    engine: str
    driver: str | None = None
    gpus: list[GpuRead] = []


class ProbeRead(_Model):
    """How one probe ended on one host."""

    name: str
    outcome: Outcome
    code: str
    message: str = ""
    seconds: float = 0.0
    metrics: dict[str, Any] = {}
    required: bool = True
    host: HostRead


class CellRead(_Model):
    """The part of a cell's report that verifying needs."""

    id: str
    torch: str
    cuda: str
    cudnn: str | None = None
    nccl: str | None = None
    python: str
    verdict: State
    reason: str = ""
    probes: list[ProbeRead] = []


class PredicateModel(_Model):
    """What was proven, where. All digests are `sha256:…`; `cell` is the cell of report.json, whole.

    `config` is the digest of the image's configuration, which names every layer by content: Docker
    Engine calls it the image's id. `tested` is the digest that the probes ran on, according to the
    report: that of the manifest or the configuration. `tags` are all that the image may have.
    """

    schema_: Literal["torchproof/evidence/1"] = Field(alias="schema")
    generated_at: str
    suite_hash: str
    host: HostRead
    cell: CellRead
    tested: str
    config: str
    plan_hash: str
    tags: list[str]
    accepted_unproven: list[str] = []
    sbom: str


class StatementModel(_Model):
    """An in-toto statement that carries our predicate."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: list[SubjectModel] = Field(min_length=1)
    predicate_type: Literal["urn:torchproof:evidence:v1"] = Field(alias="predicateType")
    predicate: PredicateModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An image in a registry: `name` is `registry/repository`, digests are `sha256:…`.

    `names` are all digests that identify this image.
    """

    name: str
    manifest: str
    config: str
    names: frozenset[str]


def make_statement(
    subject: Subject,
    cell: CellModel,
    report: ReportModel,
    *,
    tags: Iterable[str],
    accepted: Iterable[str],
    sbom: str,
) -> bytes:
    """Return the bytes to sign. Equal inputs give equal bytes.

    Raises `EvidenceError` if what was tested is not the image that the statement names.
    """
    evidence = cell.evidence
    if evidence is None or evidence.digest not in subject.names:
        tested = evidence.digest if evidence else "nothing"
        raise EvidenceError(
            f"what was tested is {tested}, but the image is {subject.manifest} "
            f"(configuration {subject.config})",
            where=cell.id,
            fix="run the matrix again, and publish with that run's report",
        )
    predicate = {
        "schema": PREDICATE_SCHEMA,
        "tool": {"name": "torchproof", "version": version("torchproof")},
        "generated_at": evidence.at,
        "suite_hash": evidence.suite_hash or report.suite_hash,
        "host": evidence.host.model_dump(mode="json"),
        "cell": cell.model_dump(mode="json"),
        "tested": evidence.digest,
        "config": subject.config,
        "plan_hash": cell.build.plan_hash if cell.build else "",
        "tags": sorted(tags),
        "accepted_unproven": sorted(accepted),
        "sbom": sbom,
    }
    algorithm, _, hexadecimal = subject.manifest.partition(":")
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": subject.name, "digest": {algorithm: hexadecimal}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }
    return canonical_json(statement).encode()


def read_statement(data: bytes, *, where: str) -> StatementModel:
    """Read a statement; raise `EvidenceError` if it is not one of this tool."""
    try:
        return StatementModel.model_validate(json.loads(data))
    except (ValueError, ValidationError) as error:
        detail = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            detail = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        raise EvidenceError(
            f"the evidence is not a statement of this tool: {detail}", where=where
        ) from error


def names_subject(statement: StatementModel, manifest: str) -> bool:
    """Tell whether a statement is about a manifest."""
    algorithm, _, hexadecimal = manifest.partition(":")
    return any(item.digest.get(algorithm) == hexadecimal for item in statement.subject)
