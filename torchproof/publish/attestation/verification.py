"""verify: does a published image have evidence, is it intact, and what does it say.

Three parts can have been altered, and the answer says which: the evidence (its bytes do not match
their digest or format), its signature, or the subject (the evidence is about another image, or a
tag names another image than it was given to).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torchproof.errors import EvidenceError, InputError, TorchproofError
from torchproof.image.open_image import from_registry
from torchproof.image.stored_image import INDEXES, Image, pick_platform
from torchproof.model.digests import sha256_digest
from torchproof.model.results import State
from torchproof.publish.attestation.attached import (
    BUNDLE_TYPE,
    EVIDENCE_TYPES,
    KEY,
    STATEMENT,
    AttachedArtifact,
    find,
)
from torchproof.publish.attestation.coverage import Requirement, uncovered
from torchproof.publish.attestation.keyless import open_bundle
from torchproof.publish.attestation.sbom import SBOM_TYPE
from torchproof.publish.attestation.signing import (
    DSSE_TYPE,
    VerifyingKey,
    open_envelope,
    parse_verifying_key,
)
from torchproof.publish.attestation.statement import StatementModel, names_subject, read_statement
from torchproof.publish.tags import is_ours, parse_content
from torchproof.registry import Reference, Registry


class Part(StrEnum):
    """The part of a piece of evidence that is wrong."""

    EVIDENCE = "evidence"
    SIGNATURE = "signature"
    SUBJECT = "subject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, and the artifact that has it."""

    part: Part
    message: str
    artifact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One piece of valid evidence. `signer` says whose signature was checked, and how far."""

    artifact: str
    statement: StatementModel
    signer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Whose signatures count: a key's, or an identity's of an issuer. If empty: any valid one."""

    key: VerifyingKey | None = None
    identity: str = ""
    issuer: str = ""

    def __post_init__(self) -> None:
        if bool(self.identity) != bool(self.issuer):
            raise InputError("--identity and --issuer go together")

    @property
    def named(self) -> bool:
        """Tell whether a signer is named, so that unsigned evidence does not count."""
        return self.key is not None or bool(self.identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What `verify` found. It is good if there are proofs, no faults, and nothing is uncovered."""

    reference: str
    digest: str
    proofs: tuple[Proof, ...] = ()
    faults: tuple[Fault, ...] = ()
    not_counted: tuple[str, ...] = ()
    """Evidence that does not count, and why: signed by somebody else."""
    uncovered: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Tell whether the evidence is valid for the image and covers what was asked."""
        return bool(self.proofs) and not self.faults and not self.uncovered


def verify(
    registry: Registry, reference: Reference, requirement: Requirement, trust: Trust
) -> Answer:
    """Check an image's evidence. Raise `EvidenceError` if there is no such image."""
    digest = _digest_of(registry, reference)
    image = from_registry(registry, reference.repository, digest)
    if image is None:
        raise EvidenceError("there is no such image", where=str(reference))
    proofs: list[Proof] = []
    faults: list[Fault] = []
    not_counted: list[str] = []
    sboms = set()
    for artifact in find(registry, reference.repository, digest):
        if artifact.problem:
            faults.append(
                Fault(part=_part(artifact), message=artifact.problem, artifact=artifact.digest)
            )
        elif artifact.media_type == SBOM_TYPE:
            sboms.add(artifact.layer)
        elif artifact.media_type in EVIDENCE_TYPES:
            result = _check(artifact, digest, trust)
            match result:
                case Proof():
                    proofs.append(result)
                case Fault():
                    faults.append(result)
                case _:
                    not_counted.append(result)
    for proof in proofs:
        faults += _check_against_image(proof, image, sboms, reference)
    missing = (
        uncovered(requirement, [proof.statement.predicate for proof in proofs]) if proofs else ()
    )
    if not proofs and not faults:
        faults.append(Fault(part=Part.EVIDENCE, message=_no_evidence(not_counted, reference)))
    return Answer(
        reference=str(reference),
        digest=digest,
        proofs=tuple(proofs),
        faults=tuple(faults),
        not_counted=tuple(not_counted),
        uncovered=missing,
    )


def _digest_of(registry: Registry, reference: Reference) -> str:
    manifest = registry.manifest(reference.repository, reference.target)
    if manifest is None:
        raise EvidenceError("there is no such image", where=str(reference))
    if manifest.media_type not in INDEXES:
        return manifest.digest
    chosen = pick_platform(manifest.json())
    if chosen is None:
        raise EvidenceError("the index has no image for linux/amd64", where=str(reference))
    return chosen


def _check(artifact: AttachedArtifact, digest: str, trust: Trust) -> Proof | Fault | str:
    try:
        payload, signer = _open(artifact, trust)
    except _NotCounted as why:
        return f"{artifact.digest}: {why}"
    except _BadSignature as why:
        return Fault(part=_part(artifact), message=str(why), artifact=artifact.digest)
    except EvidenceError as error:
        return Fault(part=Part.EVIDENCE, message=error.message, artifact=artifact.digest)
    try:
        statement = read_statement(payload, where=artifact.digest)
    except EvidenceError as error:
        return Fault(part=Part.EVIDENCE, message=error.message, artifact=artifact.digest)
    if not names_subject(statement, digest):
        about = ", ".join(sorted(item.digest.get("sha256", "?") for item in statement.subject))
        return Fault(
            part=Part.SUBJECT,
            message=f"the evidence is about sha256:{about}, not about this image",
            artifact=artifact.digest,
        )
    return Proof(artifact=artifact.digest, statement=statement, signer=signer)


def _part(artifact: AttachedArtifact) -> Part:
    """Return what was altered, by the digest of what was signed. Only a hint for the user."""
    if artifact.foreign:
        return Part.SUBJECT
    try:
        payload = open_envelope(artifact.data, where=artifact.digest).payload
    except EvidenceError:
        return Part.EVIDENCE
    return Part.EVIDENCE if _altered(artifact, payload) else Part.SIGNATURE


def _altered(artifact: AttachedArtifact, payload: bytes) -> bool:
    expected = artifact.annotations.get(STATEMENT)
    return expected is not None and sha256_digest(payload) != expected


class _NotCounted(Exception):  # noqa: N818
    """Evidence by a signer that was not asked for."""


class _BadSignature(Exception):  # noqa: N818
    """An invalid signature."""


def _open(artifact: AttachedArtifact, trust: Trust) -> tuple[bytes, str]:
    if artifact.media_type == DSSE_TYPE:
        return _open_envelope(artifact, trust)
    if artifact.media_type == BUNDLE_TYPE:
        if not trust.identity:
            raise _NotCounted("signed by sigstore; name the signer with --identity and --issuer")
        try:
            payload = open_bundle(
                artifact.data, trust.identity, trust.issuer, where=artifact.digest
            )
        except EvidenceError as error:
            raise _BadSignature(error.message) from error
        return payload, f"{trust.identity} ({trust.issuer})"
    if trust.named:
        raise _NotCounted("it is not signed")
    if _altered(artifact, artifact.data):
        raise EvidenceError("its bytes are not those that were attached")
    return artifact.data, "nobody: it is not signed"


def _open_envelope(artifact: AttachedArtifact, trust: Trust) -> tuple[bytes, str]:
    envelope = open_envelope(artifact.data, where=artifact.digest)
    pem = artifact.annotations.get(KEY, "")
    try:
        named = parse_verifying_key(pem.encode(), where=artifact.digest) if pem else None
    except TorchproofError as error:
        raise _BadSignature(f"the key that it names is not valid: {error.message}") from error
    if trust.key is not None:
        if trust.key.verifies(envelope):
            return envelope.payload, f"{trust.key.fingerprint} (the given key)"
        if named is None or named.fingerprint == trust.key.fingerprint:
            raise _BadSignature("the signature by the given key does not match the evidence")
        if not named.verifies(envelope):
            raise _BadSignature(
                "the signature matches the evidence with neither the given key nor the named one"
            )
        raise _NotCounted(f"signed by another key, {named.fingerprint}")
    if trust.identity:
        raise _NotCounted("signed by a key, not by an identity")
    if named is None:
        raise _BadSignature("it names no key, and none was given to check it with")
    if not named.verifies(envelope):
        raise _BadSignature("the signature does not match the evidence and the key that it names")
    return (
        envelope.payload,
        f"{named.fingerprint} (the key it names itself: compare it, or give --key)",
    )


def _check_against_image(
    proof: Proof, image: Image, sboms: set[str], reference: Reference
) -> list[Fault]:
    predicate = proof.statement.predicate
    faults = []

    def fault(part: Part, message: str) -> None:
        faults.append(Fault(part=part, message=message, artifact=proof.artifact))

    if predicate.config != image.config_digest or predicate.tested not in image.names:
        fault(
            Part.SUBJECT,
            f"what was tested is {predicate.tested} (configuration {predicate.config}), but this "
            f"image's configuration is {image.config_digest}",
        )
    if predicate.cell.verdict not in (State.VERIFIED, State.UNPROVEN):
        fault(Part.EVIDENCE, f"its verdict is {predicate.cell.verdict}: {predicate.cell.reason}")
    if predicate.sbom not in sboms:
        fault(Part.EVIDENCE, f"the list of contents that it names, {predicate.sbom}, is missing")
    tag = reference.tag
    if tag and is_ours(tag) and (parse_content(tag) or tag) not in predicate.tags:
        fault(
            Part.SUBJECT,
            f"the tag {tag} was given to another image: this one is {predicate.cell.id}",
        )
    return faults


def _no_evidence(not_counted: list[str], reference: Reference) -> str:
    if not_counted:
        return "none of its evidence is by the signer that was asked for"
    moved = f"; if {reference.tag} had some before, it now names another image"
    return f"this image has no evidence{moved if reference.tag else ''}"
