"""verify: does an image of a registry carry evidence, is it whole, and what does it say.

Three things can have been altered, and the answer says which: the evidence (bytes that are not what
their digest or form promises), its signature, or the subject (it speaks of another image, or a tag
names another image than the one it was given to).
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
    Found,
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
    """What is wrong with a piece of evidence."""

    EVIDENCE = "evidence"
    SIGNATURE = "signature"
    SUBJECT = "subject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong."""

    part: Part
    message: str
    artifact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One piece of evidence that holds. `signer` says whose signature was checked, and how far."""

    artifact: str
    statement: StatementModel
    signer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Whose signatures count: a key, or an identity of an issuer. Nothing: those that hold."""

    key: VerifyingKey | None = None
    identity: str = ""
    issuer: str = ""

    def __post_init__(self) -> None:
        if bool(self.identity) != bool(self.issuer):
            raise InputError("--identity and --issuer go together")

    @property
    def named(self) -> bool:
        """Tell whether signers are named, so that anything unsigned does not count."""
        return self.key is not None or bool(self.identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What verifying found. It is good if there are proofs, no faults, and nothing is uncovered."""

    reference: str
    digest: str
    proofs: tuple[Proof, ...] = ()
    faults: tuple[Fault, ...] = ()
    others: tuple[str, ...] = ()
    """Evidence that does not count, and why: signed by somebody else."""
    uncovered: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Tell whether the image is what its evidence says, and that covers what was asked."""
        return bool(self.proofs) and not self.faults and not self.uncovered


def verify(
    registry: Registry, reference: Reference, requirement: Requirement, trust: Trust
) -> Answer:
    """Check an image's evidence. Raise `EvidenceError` if there is no such image."""
    digest = _digest_of(registry, reference)
    image = from_registry(registry, reference.repository, digest)
    if image is None:
        raise EvidenceError("there is no image here", where=str(reference))
    proofs: list[Proof] = []
    faults: list[Fault] = []
    others: list[str] = []
    sboms = set()
    for one in find(registry, reference.repository, digest):
        if one.problem:
            faults.append(Fault(part=_part(one), message=one.problem, artifact=one.digest))
        elif one.media_type == SBOM_TYPE:
            sboms.add(one.layer)
        elif one.media_type in EVIDENCE_TYPES:
            found = _check(one, digest, trust)
            match found:
                case Proof():
                    proofs.append(found)
                case Fault():
                    faults.append(found)
                case _:
                    others.append(found)
    for proof in proofs:
        faults += _check_against_image(proof, image, sboms, reference)
    missing = uncovered(requirement, [one.statement.predicate for one in proofs]) if proofs else ()
    if not proofs and not faults:
        faults.append(Fault(part=Part.EVIDENCE, message=_nothing(others, reference)))
    return Answer(
        reference=str(reference),
        digest=digest,
        proofs=tuple(proofs),
        faults=tuple(faults),
        others=tuple(others),
        uncovered=missing,
    )


def _digest_of(registry: Registry, reference: Reference) -> str:
    found = registry.manifest(reference.repository, reference.target)
    if found is None:
        raise EvidenceError("there is no such image", where=str(reference))
    if found.media_type not in INDEXES:
        return found.digest
    chosen = pick_platform(found.json())
    if chosen is None:
        raise EvidenceError("the index has no image for linux/amd64", where=str(reference))
    return chosen


def _check(one: Found, digest: str, trust: Trust) -> Proof | Fault | str:
    try:
        payload, signer = _open(one, trust)
    except _NotCounted as why:
        return f"{one.digest}: {why}"
    except _BadSignature as why:
        return Fault(part=_part(one), message=str(why), artifact=one.digest)
    except EvidenceError as error:
        return Fault(part=Part.EVIDENCE, message=error.message, artifact=one.digest)
    try:
        statement = read_statement(payload, where=one.digest)
    except EvidenceError as error:
        return Fault(part=Part.EVIDENCE, message=error.message, artifact=one.digest)
    if not names_subject(statement, digest):
        about = ", ".join(sorted(each.digest.get("sha256", "?") for each in statement.subject))
        return Fault(
            part=Part.SUBJECT,
            message=f"the evidence is about sha256:{about}, not about this image",
            artifact=one.digest,
        )
    return Proof(artifact=one.digest, statement=statement, signer=signer)


def _part(one: Found) -> Part:
    """Tell what was altered, by the digest of what was signed; it only helps to find the fault."""
    if one.foreign:
        return Part.SUBJECT
    try:
        payload = open_envelope(one.data, where=one.digest).payload
    except EvidenceError:
        return Part.EVIDENCE
    return Part.EVIDENCE if _altered(one, payload) else Part.SIGNATURE


def _altered(one: Found, payload: bytes) -> bool:
    promised = one.annotations.get(STATEMENT)
    return promised is not None and sha256_digest(payload) != promised


class _NotCounted(Exception):  # noqa: N818
    """Evidence by somebody whom nobody asked about."""


class _BadSignature(Exception):  # noqa: N818
    """A signature that does not hold."""


def _open(one: Found, trust: Trust) -> tuple[bytes, str]:
    if one.media_type == DSSE_TYPE:
        return _open_envelope(one, trust)
    if one.media_type == BUNDLE_TYPE:
        if not trust.identity:
            raise _NotCounted("signed by sigstore; say whose with --identity and --issuer")
        try:
            payload = open_bundle(one.data, trust.identity, trust.issuer, where=one.digest)
        except EvidenceError as error:
            raise _BadSignature(error.message) from error
        return payload, f"{trust.identity} ({trust.issuer})"
    if trust.named:
        raise _NotCounted("it is not signed")
    if _altered(one, one.data):
        raise EvidenceError("its bytes are not those that were attached")
    return one.data, "nobody: it is not signed"


def _open_envelope(one: Found, trust: Trust) -> tuple[bytes, str]:
    envelope = open_envelope(one.data, where=one.digest)
    said = one.annotations.get(KEY, "")
    try:
        named = parse_verifying_key(said.encode(), where=one.digest) if said else None
    except TorchproofError as error:
        raise _BadSignature(f"the key that it names is none: {error.message}") from error
    if trust.key is not None:
        if trust.key.verifies(envelope):
            return envelope.payload, f"{trust.key.fingerprint} (the given key)"
        if named is None or named.fingerprint == trust.key.fingerprint:
            raise _BadSignature("the signature by the given key does not fit the evidence")
        if not named.verifies(envelope):
            raise _BadSignature("the signature does not fit the evidence, by no key")
        raise _NotCounted(f"signed by another key, {named.fingerprint}")
    if trust.identity:
        raise _NotCounted("signed by a key, not by an identity")
    if named is None:
        raise _BadSignature("it names no key, and none was given to check it with")
    if not named.verifies(envelope):
        raise _BadSignature("the signature does not fit the evidence and the key that it names")
    return envelope.payload, f"{named.fingerprint} (by its own word; compare, or give --key)"


def _check_against_image(
    proof: Proof, image: Image, sboms: set[str], reference: Reference
) -> list[Fault]:
    said = proof.statement.predicate
    faults = []

    def fault(part: Part, message: str) -> None:
        faults.append(Fault(part=part, message=message, artifact=proof.artifact))

    if said.config != image.config_digest or said.tested not in image.names:
        fault(
            Part.SUBJECT,
            f"what was tested is {said.tested} (configuration {said.config}), and this image's "
            f"configuration is {image.config_digest}",
        )
    if said.cell.verdict not in (State.VERIFIED, State.UNPROVEN):
        fault(Part.EVIDENCE, f"its verdict is {said.cell.verdict}: {said.cell.reason}")
    if said.sbom not in sboms:
        fault(Part.EVIDENCE, f"the list of contents that it names, {said.sbom}, is not attached")
    tag = reference.tag
    if tag and is_ours(tag) and (parse_content(tag) or tag) not in said.tags:
        fault(
            Part.SUBJECT,
            f"the tag {tag} was given to another image: this one is {said.cell.id}",
        )
    return faults


def _nothing(others: list[str], reference: Reference) -> str:
    if others:
        return "none of its evidence is by the signer that was asked for"
    moved = f"; if {reference.tag} once had some, it now names another image"
    return f"this image carries no evidence{moved if reference.tag else ''}"
