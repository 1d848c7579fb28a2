"""Evidence in a registry: attached to its image, found again, and safe from other publishers.

Each piece is an OCI 1.1 artifact whose `subject` is the image. It also has a tag of its own,
`sha256-<image>.<piece>.proof`: registries have no compare-and-swap, so where the referrers API is
missing, two publishers can overwrite each other's fallback index. After each change a publisher
lists the proof tags, which nobody overwrites, and repairs an index that lacks one. cosign's tag
`sha256-<image>.att` gathers all signed envelopes in the same way (cosign, ATTESTATION_SPEC.md).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchproof.errors import IntegrityError, RegistryError
from torchproof.model.digests import sha256_digest
from torchproof.publish.attestation.signing import DSSE_TYPE
from torchproof.publish.attestation.statement import PAYLOAD_TYPE, PREDICATE_TYPE
from torchproof.publish.manifests import put_manifest
from torchproof.registry import OCI_EMPTY, OCI_INDEX, OCI_MANIFEST, Descriptor, Manifest, Registry

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
EVIDENCE_TYPES = (DSSE_TYPE, BUNDLE_TYPE, PAYLOAD_TYPE)
CREATED = "org.opencontainers.image.created"
CELL = "torchproof.cell"
VERDICT = "torchproof.verdict"
SUITE = "torchproof.suite"
KEY = "torchproof.public-key"
STATEMENT = "torchproof.statement"
"""Digest of what was signed: distinguishes an altered statement from an altered signature."""
UNPROVEN = "torchproof.unproven"
BUNDLE_ANNOTATIONS = {
    "dev.sigstore.bundle.content": "dsse-envelope",
    "dev.sigstore.bundle.predicateType": PREDICATE_TYPE,
}
"""What cosign looks for beside a bundle."""
_EMPTY = b"{}"
_ROUNDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One artifact to attach: `data` of `media_type`, and the annotations that listings show."""

    media_type: str
    data: bytes
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """`sha256:…` of the data."""
        return sha256_digest(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedArtifact:
    """One artifact in a registry. `problem` says why it cannot be used; `data` is its content."""

    digest: str
    media_type: str
    annotations: Mapping[str, str]
    data: bytes = b""
    layer: str = ""
    problem: str = ""
    foreign: bool = False
    """Its subject is another image."""


def attach(registry: Registry, repository: str, subject: Descriptor, piece: Piece) -> str:
    """Attach a piece to an image; return its artifact's digest. Attaching it twice is harmless."""
    layer = registry.push_blob(repository, piece.data, media_type=piece.media_type)
    empty = registry.push_blob(repository, _EMPTY, media_type=OCI_EMPTY)
    descriptor = layer.as_json()
    if piece.media_type == DSSE_TYPE:
        descriptor["annotations"] = _COSIGN
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": piece.media_type,
        "config": empty.as_json(),
        "layers": [descriptor],
        "subject": subject.as_json(),
        "annotations": dict(piece.annotations),
    }
    data = _json(manifest)
    digest = Manifest(media_type=OCI_MANIFEST, data=data).digest
    return put_manifest(registry, repository, _proof_tag(subject.digest, digest), data)


def settle(registry: Registry, repository: str, subject: str) -> None:
    """Make the image's referrers and cosign's tag name all its artifacts, whoever attached them.

    Raises `RegistryError` if the registry does not list them, or others keep changing them.
    """
    for round_ in range(_ROUNDS):
        tagged = _tagged_manifests(registry, repository, subject)
        if not tagged:
            raise RegistryError(
                f"{registry.host} does not list the evidence of {subject} that it has stored",
                fix="run the same command again: nothing is sent twice",
            )
        complete = _repair_referrers(registry, repository, subject, tagged)
        complete &= _repair_cosign_tag(registry, repository, subject, tagged)
        if complete:
            return
        time.sleep(0.05 * round_)
    raise RegistryError(
        f"other publishers keep changing the evidence of {subject}",
        fix="run the same command again when they have finished",
    )


def find(registry: Registry, repository: str, subject: str) -> tuple[AttachedArtifact, ...]:
    """Fetch all artifacts of an image, oldest first. A broken one is returned with its problem."""
    targets = [referrer.digest for referrer in registry.referrers(repository, subject)]
    targets += _proof_tags(registry, repository, subject)
    found: dict[str, AttachedArtifact] = {}
    for target in targets:
        try:
            manifest = registry.manifest(repository, target)
        except IntegrityError as error:
            found[target] = _unusable(target, str(error))
            continue
        if manifest is None:
            found[target] = _unusable(target, "it is listed, but the registry does not have it")
        elif manifest.digest not in found:
            found[manifest.digest] = _fetch(registry, repository, subject, manifest)
    return tuple(
        sorted(found.values(), key=lambda item: (item.annotations.get(CREATED, ""), item.digest))
    )


def listed(registry: Registry, repository: str, subject: str) -> tuple[Descriptor, ...]:
    """List the evidence of an image without fetching it; the annotations say what it is about."""
    return tuple(
        referrer
        for referrer in registry.referrers(repository, subject)
        if referrer.artifact_type in EVIDENCE_TYPES and VERDICT in referrer.annotations
    )


def is_proof_tag(tag: str) -> bool:
    """Tell whether a tag holds a piece of evidence."""
    return tag.startswith("sha256-")


def subject_of_tag(tag: str) -> str:
    """Return the digest of the image that a tag of evidence belongs to."""
    return "sha256:" + tag.removeprefix("sha256-").partition(".")[0]


_COSIGN = {"dev.cosignproject.cosign/signature": "", "predicateType": PREDICATE_TYPE}


def _unusable(digest: str, problem: str) -> AttachedArtifact:
    return AttachedArtifact(digest=digest, media_type="", annotations={}, problem=problem)


def _fetch(
    registry: Registry, repository: str, subject: str, manifest: Manifest
) -> AttachedArtifact:
    data = manifest.json()
    annotations = data.get("annotations") or {}
    kind = data.get("artifactType") or (data.get("config") or {}).get("mediaType") or ""
    named = (data.get("subject") or {}).get("digest")
    problem, content, layer = "", b"", ""
    if named != subject:
        problem = f"its subject is {named or 'nothing'}, not this image"
    elif kind in EVIDENCE_TYPES or kind.endswith("cyclonedx+json"):
        try:
            layer = Descriptor.from_json(data["layers"][0]).digest
            for chunk in registry.read_blob(repository, layer):
                content += chunk
        except (KeyError, IndexError, TypeError) as error:
            problem = f"it has no content: {error!r}"
        except (IntegrityError, RegistryError) as error:
            problem = f"its content was altered or lost: {error.message}"
    return AttachedArtifact(
        digest=manifest.digest,
        media_type=kind,
        annotations=annotations,
        data=content,
        layer=layer,
        problem=problem,
        foreign=named != subject,
    )


def _tagged_manifests(registry: Registry, repository: str, subject: str) -> dict[str, Manifest]:
    found = {}
    for tag in _proof_tags(registry, repository, subject):
        manifest = registry.manifest(repository, tag)
        if manifest is not None:
            found[manifest.digest] = manifest
    return found


def _proof_tags(registry: Registry, repository: str, subject: str) -> list[str]:
    prefix = _fallback_tag(subject) + "."
    tags = registry.tags(repository)
    return [tag for tag in tags if tag.startswith(prefix) and tag.endswith(".proof")]


def _repair_referrers(
    registry: Registry, repository: str, subject: str, tagged: Mapping[str, Manifest]
) -> bool:
    """Add what the referrers lack; return True if they lacked nothing."""
    present = {item.digest: item for item in registry.referrers(repository, subject)}
    missing = [manifest for digest, manifest in tagged.items() if digest not in present]
    if not missing:
        return True
    entries = [*present.values(), *map(_referrer, missing)]
    index = {
        "schemaVersion": 2,
        "mediaType": OCI_INDEX,
        "manifests": [item.as_json() for item in sorted(entries, key=lambda item: item.digest)],
    }
    put_manifest(registry, repository, _fallback_tag(subject), _json(index), media_type=OCI_INDEX)
    return False


def _repair_cosign_tag(
    registry: Registry, repository: str, subject: str, tagged: Mapping[str, Manifest]
) -> bool:
    """Gather the signed envelopes under cosign's tag; return True if there was nothing to do."""
    layers: dict[str, dict[str, Any]] = {}
    tag = f"{_fallback_tag(subject)}.att"
    present = registry.manifest(repository, tag)
    before = {item["digest"]: item for item in (present.json()["layers"] if present else [])}
    for manifest in tagged.values():
        for layer in manifest.json()["layers"]:
            if layer["mediaType"] == DSSE_TYPE:
                layers[layer["digest"]] = layer
    if layers.keys() <= before.keys():
        return True
    empty = registry.push_blob(repository, _EMPTY, media_type=OCI_EMPTY)
    gathered = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": empty.as_json(),
        "layers": [layer for _, layer in sorted((before | layers).items())],
    }
    put_manifest(registry, repository, tag, _json(gathered))
    return False


def _referrer(manifest: Manifest) -> Descriptor:
    data = manifest.json()
    return Descriptor(
        media_type=manifest.media_type,
        digest=manifest.digest,
        size=manifest.size,
        annotations=data.get("annotations") or {},
        artifact_type=data.get("artifactType"),
    )


def _fallback_tag(digest: str) -> str:
    """Return the tag of the index of referrers (distribution spec 1.1, "Referrers Tag Schema")."""
    return digest.replace(":", "-", 1)


def _proof_tag(subject: str, digest: str) -> str:
    return f"{_fallback_tag(subject)}.{digest.removeprefix('sha256:')[:16]}.proof"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
