"""prune: which published images nobody needs any more, and what must stay because of others. Pure
decisions first, deletion last.
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
    """One published image: its digest, the tags of its own, and what its evidence says."""

    digest: str
    cell: str
    tags: tuple[str, ...]
    at: str = ""
    verified: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What stays. `cells` are those of the matrix; `keep` newest versions of a cell stay."""

    cells: frozenset[str]
    keep: int = 5
    keep_verified: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a version goes, and why."""

    version: Version
    goes: bool
    reason: str


def decide(
    versions: Iterable[Version], tags: Mapping[str, str], policy: Policy
) -> tuple[Verdict, ...]:
    """Decide on each version. `tags` maps all other tags of the repository to digests.

    Moving tags that no cell of the matrix can carry any more do not count. A version goes if its
    cell is no longer in the matrix, or newer ones exceed `keep`; never if a tag that stays names
    its digest, and never a verified one with `keep_verified` while its cell is in the matrix.
    """
    kept = _kept(tags, policy)
    by_cell: dict[str, list[Version]] = {}
    for one in versions:
        by_cell.setdefault(one.cell, []).append(one)
    found = []
    for cell in sorted(by_cell):
        newest = sorted(by_cell[cell], key=lambda one: (one.at, one.digest), reverse=True)
        for place, one in enumerate(newest):
            found.append(_decide(one, place, kept, policy))
    return tuple(found)


def _decide(one: Version, place: int, tags: Mapping[str, str], policy: Policy) -> Verdict:
    needing = sorted(tag for tag, digest in tags.items() if digest == one.digest)
    in_matrix = one.cell in policy.cells
    if in_matrix and place < policy.keep:
        return Verdict(version=one, goes=False, reason=f"one of the newest {policy.keep}")
    if in_matrix and one.verified and policy.keep_verified:
        return Verdict(version=one, goes=False, reason="verified")
    if needing:
        return Verdict(version=one, goes=False, reason=f"the tag {', '.join(needing)} needs it")
    if in_matrix:
        return Verdict(version=one, goes=True, reason=f"older than the newest {policy.keep}")
    return Verdict(version=one, goes=True, reason="its cell is not in the matrix")


def _kept(tags: Mapping[str, str], policy: Policy) -> dict[str, str]:
    carried = {tag for cell in policy.cells for tag in moving_tags_of_cell(cell)}
    return {tag: digest for tag, digest in tags.items() if not is_moving(tag) or tag in carried}


def survey(registry: Registry, repository: str) -> tuple[tuple[Version, ...], dict[str, str]]:
    """Read a repository: its versions, and the tags that are nobody's own with their digests.

    A moving tag of a cell, and any tag that this tool did not make, is such a tag; an index counts
    for each image that it names. Raises `RegistryError` if a tag cannot be read: nothing may go.
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
                f"the tag {tag} is listed, but names nothing", where=f"{registry.host}/{repository}"
            )
        name = parse_immutable(parse_content(tag) or tag)
        if name is None or is_moving(tag):
            others[tag] = manifest.digest
            if manifest.media_type in (OCI_INDEX, DOCKER_MANIFEST_LIST):
                for number, one in enumerate(manifest.json().get("manifests") or []):
                    others[f"{tag} ({number})"] = one["digest"]
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
                at=max((one.annotations.get(CREATED, "") for one in evidence), default=""),
                verified=any(one.annotations.get(VERDICT) == State.VERIFIED for one in evidence),
            )
        )
    return tuple(versions), others


def delete(
    registry: Registry, repository: str, gone: Collection[str], policy: Policy
) -> tuple[str, ...]:
    """Delete images and all that was attached to them; return the digests deleted.

    Looks at the tags once more just before: an image that another tag names by now stays. The
    registry's own garbage collector then frees the blobs that no image needs.
    """
    versions, others = survey(registry, repository)
    needed = set(_kept(others, policy).values())
    still = {one.digest for one in versions if one.digest in gone} - needed
    attached: dict[str, set[str]] = {digest: set() for digest in still}
    for tag in registry.tags(repository):
        if is_proof_tag(tag) and subject_of_tag(tag) in still:
            digest = registry.manifest_digest(repository, tag)
            if digest is not None:
                attached[subject_of_tag(tag)].add(digest)
    deleted = []
    for digest in sorted(still):
        attached[digest] |= {one.digest for one in registry.referrers(repository, digest)}
        # The image first: a half-done deletion leaves evidence without image, never the reverse.
        for one in (digest, *sorted(attached[digest])):
            registry.delete_manifest(repository, one)
            deleted.append(one)
    return tuple(deleted)
