"""prune: which published images are no longer needed, and which must stay for the sake of a tag.

Pure decisions first, deletion last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from torchproof.errors import RegistryError
from torchproof.model.results import State
from torchproof.publish.attestation.attached import (
    CREATED,
    VERDICT,
    is_proof_tag,
    listed,
    subject_of_tag,
)
from torchproof.publish.tags import (
    is_moving,
    moving_tags_of_cell,
    parse_content,
    parse_immutable,
)
from torchproof.registry import DOCKER_MANIFEST_LIST, OCI_INDEX, Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One published image: its digest, its own tags, and what its evidence says."""

    digest: str
    cell: str
    tags: tuple[str, ...]
    at: str = ""
    verified: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What stays: `cells` are those of the matrix; the `keep` newest versions of each stay."""

    cells: frozenset[str]
    keep: int = 5
    keep_verified: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneDecision:
    """Whether a version is to be deleted (`goes`), and why."""

    version: Version
    goes: bool
    reason: str


def decide(
    versions: Iterable[Version], tags: Mapping[str, str], policy: RetentionPolicy
) -> tuple[PruneDecision, ...]:
    """Decide on each version. `tags` maps all other tags of the repository to digests.

    Moving tags that no cell of the matrix can have any longer do not count. A version goes if its
    cell is no longer in the matrix, or if `keep` versions are newer. It never goes if a tag that
    stays names its digest, or, with `keep_verified`, if it is verified and its cell in the matrix.
    """
    kept = _kept_tags(tags, policy)
    by_cell: dict[str, list[Version]] = {}
    for version in versions:
        by_cell.setdefault(version.cell, []).append(version)
    decisions = []
    for cell in sorted(by_cell):
        newest = sorted(by_cell[cell], key=lambda item: (item.at, item.digest), reverse=True)
        for rank, version in enumerate(newest):
            decisions.append(_decide(version, rank, kept, policy))
    return tuple(decisions)


def _decide(
    version: Version, rank: int, tags: Mapping[str, str], policy: RetentionPolicy
) -> PruneDecision:
    needing = sorted(tag for tag, digest in tags.items() if digest == version.digest)
    in_matrix = version.cell in policy.cells
    if in_matrix and rank < policy.keep:
        return PruneDecision(version=version, goes=False, reason=f"one of the newest {policy.keep}")
    if in_matrix and version.verified and policy.keep_verified:
        return PruneDecision(version=version, goes=False, reason="verified")
    if needing:
        return PruneDecision(
            version=version, goes=False, reason=f"the tag {', '.join(needing)} needs it"
        )
    if in_matrix:
        return PruneDecision(
            version=version, goes=True, reason=f"older than the newest {policy.keep}"
        )
    return PruneDecision(version=version, goes=True, reason="its cell is not in the matrix")


def _kept_tags(tags: Mapping[str, str], policy: RetentionPolicy) -> dict[str, str]:
    possible = {tag for cell in policy.cells for tag in moving_tags_of_cell(cell)}
    return {tag: digest for tag, digest in tags.items() if not is_moving(tag) or tag in possible}


def survey(registry: Registry, repository: str) -> tuple[tuple[Version, ...], dict[str, str]]:
    """Read a repository: return its versions, and the digests of all other tags.

    Other tags are the moving ones, and those that this tool did not make; an index counts for each
    image that it names. Raises `RegistryError` if a tag cannot be read: then nothing may go.
    """
    own: dict[str, list[str]] = {}
    cells: dict[str, str] = {}
    others: dict[str, str] = {}
    for tag in registry.tags(repository):
        if is_proof_tag(tag):
            continue
        manifest = registry.manifest(repository, tag)
        if manifest is None:
            raise RegistryError(
                f"the tag {tag} is listed, but has no manifest",
                where=f"{registry.host}/{repository}",
            )
        name = parse_immutable(parse_content(tag) or tag)
        if name is None or is_moving(tag):
            others[tag] = manifest.digest
            if manifest.media_type in (OCI_INDEX, DOCKER_MANIFEST_LIST):
                for number, entry in enumerate(manifest.json().get("manifests") or []):
                    others[f"{tag} ({number})"] = entry["digest"]
            continue
        own.setdefault(manifest.digest, []).append(tag)
        cells[manifest.digest] = name.cell
    versions = []
    for digest, tags in own.items():
        evidence = listed(registry, repository, digest)
        versions.append(
            Version(
                digest=digest,
                cell=cells[digest],
                tags=tuple(tags),
                at=max((item.annotations.get(CREATED, "") for item in evidence), default=""),
                verified=any(item.annotations.get(VERDICT) == State.VERIFIED for item in evidence),
            )
        )
    return tuple(versions), others


def delete(
    registry: Registry, repository: str, gone: Collection[str], policy: RetentionPolicy
) -> tuple[str, ...]:
    """Delete images and everything attached to them; return the digests deleted.

    Reads the tags once more just before: an image that another tag now names stays. The registry's
    own garbage collector then frees the blobs that no image needs.
    """
    versions, others = survey(registry, repository)
    needed = set(_kept_tags(others, policy).values())
    unneeded = {version.digest for version in versions if version.digest in gone} - needed
    attached: dict[str, set[str]] = {digest: set() for digest in unneeded}
    for tag in registry.tags(repository):
        if is_proof_tag(tag) and subject_of_tag(tag) in unneeded:
            digest = registry.manifest_digest(repository, tag)
            if digest is not None:
                attached[subject_of_tag(tag)].add(digest)
    deleted = []
    for digest in sorted(unneeded):
        attached[digest] |= {item.digest for item in registry.referrers(repository, digest)}
        # The image first: a deletion cut short leaves evidence without an image, not the reverse.
        for manifest in (digest, *sorted(attached[digest])):
            registry.delete_manifest(repository, manifest)
            deleted.append(manifest)
    return tuple(deleted)
