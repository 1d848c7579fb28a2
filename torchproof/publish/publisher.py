"""publish: all content and evidence of all cells first, then immutable tags, then moving ones.

Whatever stops a run, each tag names a complete image with its evidence, and another run continues
where it stopped: content is found by digest, evidence is equal byte for byte, and tags follow from
what the registry holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchproof.errors import CellError, HostError, InputError, TorchproofError
from torchproof.image.open_image import find_image, from_registry
from torchproof.image.stored_image import TESTED, Image
from torchproof.model.digests import sha256_digest
from torchproof.model.lock import Lock
from torchproof.model.lock_file import lock_path, read_lock
from torchproof.model.results import State
from torchproof.publish.attestation import attached as evidence
from torchproof.publish.attestation.attached import BUNDLE_TYPE, Piece
from torchproof.publish.attestation.keyless import sign_keyless
from torchproof.publish.attestation.sbom import SBOM_TYPE, make_sbom
from torchproof.publish.attestation.signing import DSSE_TYPE, SigningKey
from torchproof.publish.attestation.statement import PAYLOAD_TYPE, Subject, make_statement
from torchproof.publish.image_check import Inside, check_inside
from torchproof.publish.policy import Decision, decide
from torchproof.publish.push_content import PackedLayers, push_content
from torchproof.publish.put_tags import MovedTag, move_tags, put_immutable
from torchproof.publish.tags import (
    Immutable,
    content_tags,
    immutable_tag,
    moving_tags,
    parse_immutable,
)
from torchproof.registry import Descriptor, Registry
from torchproof.report.models import CellModel, ReportModel

Say = Callable[[str, str], None]
"""Called for each step with the cell's id (empty for the run itself) and what happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to publish, and with what."""

    registry: Registry
    repository: str
    scratch: Path
    """Folder for images that an engine saves, and for the record of compressed layers."""
    images: Path
    """Folder of the cells' locks."""
    key: SigningKey | None = None
    accept_unproven: tuple[str, ...] = ()
    stage: bool = False
    """Push content and evidence only; set no tag that users pull."""
    say: Say = lambda cell, text: None

    @property
    def name(self) -> str:
        """`registry/repository`."""
        return f"{self.registry.host}/{self.repository}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A cell whose content and evidence are in the registry."""

    cell: str
    tag: Immutable
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pushed:
    """A cell whose content is in the registry. `inside` is None if it already was."""

    cell: CellModel
    decision: Decision
    tag: Immutable
    digest: str
    image: Image
    inside: Inside | None
    lock: Lock | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult:
    """What publishing did. `refused` are the cells that policy does not allow, with the reason."""

    published: tuple[Prepared, ...] = ()
    refused: tuple[Decision, ...] = ()
    moved: tuple[MovedTag, ...] = ()
    failed: tuple[TorchproofError, ...] = field(default=())


def publish(report: ReportModel, cells: Sequence[str], target: Target) -> PublishResult:
    """Publish the named cells of a report, as far as policy allows them.

    A cell at fault (`CellError`) is left out, and the others go on. A registry or engine at fault
    (`HostError`) ends the run before any tag is set.
    """
    decisions = decisions_for(report, cells, target.accept_unproven)
    refused = [decision for decision in decisions if not decision.allowed]
    prepared, failed = [], []
    for decision in decisions:
        if not decision.allowed:
            continue
        try:
            prepared.append(_prepare(report, decision, target))
        except HostError:
            raise
        except TorchproofError as error:
            failed.append(error)
            target.say(decision.cell, f"not published: {error.message}")
    if target.stage:
        return PublishResult(
            published=tuple(prepared), refused=tuple(refused), failed=tuple(failed)
        )
    placed = []
    for image in prepared:
        try:
            new = put_immutable(target.registry, target.repository, image.tag.tag, image.digest)
        except CellError as error:
            failed.append(error)
            target.say(image.cell, f"not published: {error.message}")
            continue
        target.say(image.cell, f"{image.tag.tag} {'is' if new else 'was already'} {image.digest}")
        placed.append(image)
    moved: tuple[MovedTag, ...] = ()
    if placed:
        moved = move_tags(target.registry, target.repository, [image.tag for image in placed])
    return PublishResult(
        published=tuple(placed), refused=tuple(refused), moved=moved, failed=tuple(failed)
    )


def decisions_for(
    report: ReportModel, cells: Sequence[str], accept_unproven: Sequence[str]
) -> tuple[Decision, ...]:
    """Decide on each named cell of a report, in the report's order."""
    names = set(cells)
    return tuple(decide(cell, accept_unproven) for cell in report.cells if cell.id in names)


def _prepare(report: ReportModel, decision: Decision, target: Target) -> Prepared:
    cell = next(item for item in report.cells if item.id == decision.cell)
    tag = immutable_tag(cell.id, cell.lock_digest)
    lock = _read_lock(cell, target.images)
    tested = cell.image.digest if cell.image else ""
    present = _find_content(target, tag, tested)
    if present is not None:
        digest, image = present
        target.say(cell.id, f"its content is already there: {digest}")
        inside = None
    else:
        with find_image(cell.image.ref if cell.image else "", tested, target.scratch) as image:
            if not image.is_tested(tested):
                raise CellError(
                    f"the image is {image.config_digest}, the report is about {tested}",
                    where=cell.id,
                    fix="run the matrix again: only the tested image is published",
                )
            inside = check_inside(image, cell)
            target.say(cell.id, "pushing its content")
            digest = push_content(
                target.registry,
                target.repository,
                image,
                tag,
                packed=PackedLayers(path=target.scratch / "packed.json"),
                annotations=_unproven_annotations(decision) | _tested_annotation(decision, tested),
            )
    name = parse_immutable(tag)
    if name is None:
        raise InputError(f"{tag!r} is not the tag of a torchproof cell", where=cell.id)
    pushed = _Pushed(
        cell=cell,
        decision=decision,
        tag=name,
        digest=digest,
        image=image,
        inside=inside,
        lock=lock,
    )
    _attach(report, pushed, target)
    return Prepared(cell=cell.id, tag=name, digest=digest)


def _find_content(target: Target, tag: str, tested: str) -> tuple[str, Image] | None:
    """Find the tested image in the registry: under its immutable tag, or its content tag."""
    names = (tag, *content_tags(target.registry.tags(target.repository), tag))
    for name in names:
        digest = target.registry.manifest_digest(target.repository, name)
        if digest is None:
            continue
        image = from_registry(target.registry, target.repository, digest)
        if image is not None and image.is_tested(tested):
            return digest, image
    return None


def _attach(report: ReportModel, pushed: _Pushed, target: Target) -> None:
    cell, decision, digest, image = pushed.cell, pushed.decision, pushed.digest, pushed.image
    name = pushed.tag
    manifest = target.registry.manifest(target.repository, digest)
    if manifest is None:
        raise CellError(f"the registry lost {digest}", where=cell.id, fix="publish again")
    subject = manifest.descriptor()
    sbom = _attached_sbom(target, digest)
    if sbom is None:
        document = make_sbom(image, pushed.inside or check_inside(image, cell), pushed.lock)
        sbom = _put_sbom(target, subject, document, cell.id)
    statement = make_statement(
        Subject(name=target.name, manifest=digest, config=image.config_digest, names=image.names),
        cell,
        report,
        tags=(name.tag, *moving_tags(name)),
        accepted=decision.accepted,
        sbom=sbom,
    )
    media_type, data, signer = _signed(statement, target)
    annotations = {
        evidence.CREATED: cell.evidence.at if cell.evidence else report.generated_at,
        evidence.CELL: cell.id,
        evidence.STATEMENT: sha256_digest(statement),
        evidence.VERDICT: str(cell.verdict),
        evidence.SUITE: cell.evidence.suite_hash if cell.evidence else report.suite_hash,
        **_unproven_annotations(decision),
        **signer,
    }
    piece = Piece(media_type=media_type, data=data, annotations=annotations)
    evidence.attach(target.registry, target.repository, subject, piece)
    evidence.settle(target.registry, target.repository, digest)
    target.say(cell.id, f"evidence is attached to {digest}")


def _signed(statement: bytes, target: Target) -> tuple[str, bytes, dict[str, str]]:
    if target.key is not None:
        key = target.key
        return DSSE_TYPE, key.sign(statement), {evidence.KEY: key.public.pem}
    bundle = sign_keyless(statement)
    if bundle is not None:
        return BUNDLE_TYPE, bundle, evidence.BUNDLE_ANNOTATIONS
    target.say("", "the evidence is not signed: there is no --key, and no identity of a CI system")
    return PAYLOAD_TYPE, statement, {}


def _attached_sbom(target: Target, digest: str) -> str | None:
    for artifact in evidence.find(target.registry, target.repository, digest):
        if artifact.media_type == SBOM_TYPE and not artifact.problem:
            return artifact.layer
    return None


def _put_sbom(target: Target, subject: Descriptor, document: bytes, cell: str) -> str:
    piece = Piece(media_type=SBOM_TYPE, data=document, annotations={evidence.CELL: cell})
    evidence.attach(target.registry, target.repository, subject, piece)
    return piece.digest


def _unproven_annotations(decision: Decision) -> dict[str, str]:
    if not decision.accepted:
        return {}
    return {
        evidence.VERDICT: str(State.UNPROVEN),
        evidence.UNPROVEN: ",".join(decision.accepted),
    }


def _tested_annotation(decision: Decision, tested: str) -> dict[str, str]:
    return {TESTED: tested} if decision.accepted else {}


def _read_lock(cell: CellModel, images: Path) -> Lock | None:
    path = lock_path(cell.id, images)
    if not path.is_file():
        return None
    lock = read_lock(path)
    if lock.digest != cell.lock_digest:
        raise CellError(
            f"the lock has changed since the report: it is {lock.digest}, "
            f"the report is about {cell.lock_digest}",
            where=str(path),
            fix="run the matrix again",
        )
    return lock
