"""Tags in a registry: set immutable ones once, move the others together, safe among publishers.

A registry has no compare-and-swap. A content tag announces an immutable tag before it is set, so
publishers of different images under one name see each other. Moving tags are a function of what the
registry holds (`tags.candidates`, `tags.best`): the last writer checks again, and so leaves them
right whatever other publishers did in between.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchproof.errors import CellError, RegistryError
from torchproof.model.results import State
from torchproof.publish.attestation.attached import CREATED, VERDICT, listed
from torchproof.publish.manifests import put_manifest
from torchproof.publish.tags import (
    Immutable,
    Published,
    best,
    candidates,
    content_tag,
    content_tags,
    moving_tags,
    parse_immutable,
)
from torchproof.registry import Registry

SETTLE = 2.0
"""Seconds to wait for another publisher of the same immutable tag to finish."""
_ROUNDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedTag:
    """A moving tag and the image it now names; `before` is None if the tag is new."""

    tag: str
    digest: str
    name: str
    before: str | None


def put_immutable(
    registry: Registry, repository: str, tag: str, digest: str, *, settle: float = SETTLE
) -> bool:
    """Give an image its immutable tag; return False if it already had it.

    Raises `CellError` if the tag names another image, perhaps since a moment ago.
    """
    if _taken(registry, repository, tag, digest):
        return False
    _yield_to_rivals(registry, repository, tag, digest, settle)
    if _taken(registry, repository, tag, digest):
        return False
    manifest = registry.manifest(repository, digest)
    if manifest is None:
        raise RegistryError(
            f"{registry.host} no longer has {digest}", fix="run the same command again"
        )
    put_manifest(registry, repository, tag, manifest.data, media_type=manifest.media_type)
    if not _taken(registry, repository, tag, digest):
        raise RegistryError(
            f"{registry.host} accepted the tag {tag}, but does not have it",
            fix="run the same command again",
        )
    return True


def plan_moves(
    registry: Registry, repository: str, placed: Sequence[Immutable]
) -> Mapping[str, Published]:
    """Decide which images the moving tags of these images name, from what the registry holds now.

    Raises `RegistryError` if it does not show these images or their evidence: then its state
    cannot be relied on.
    """
    names = [name for tag in registry.tags(repository) if (name := parse_immutable(tag))]
    known = {name.tag: _published(registry, repository, name) for name in placed}
    for own in placed:
        seen = known[own.tag]
        if own not in names or seen is None or not seen.at:
            raise RegistryError(
                f"{registry.host} does not show {own.tag} and its evidence, which it has stored",
                fix="run the same command again",
            )

    def look_up(name: Immutable) -> Published | None:
        if name.tag not in known:
            known[name.tag] = _published(registry, repository, name)
        return known[name.tag]

    chosen = {}
    for moving in sorted({tag for name in placed for tag in moving_tags(name)}):
        for group in candidates(names, moving):
            winner = best((seen for name in group if (seen := look_up(name))), moving)
            if winner is not None:
                chosen[moving] = winner
                break
    return chosen


def move_tags(
    registry: Registry, repository: str, placed: Sequence[Immutable]
) -> tuple[MovedTag, ...]:
    """Move the tags that these images may have to where they belong, until all are right.

    Raises `RegistryError` if other publishers keep moving them.
    """
    before: dict[str, str | None] = {}
    for round_ in range(_ROUNDS):
        chosen = plan_moves(registry, repository, placed)
        wrong = []
        for tag, target in chosen.items():
            now = registry.manifest_digest(repository, tag)
            before.setdefault(tag, now)
            if now != target.digest:
                wrong.append((tag, target))
        if not wrong:
            return tuple(
                MovedTag(tag=tag, digest=image.digest, name=image.name.tag, before=before[tag])
                for tag, image in chosen.items()
            )
        for tag, target in wrong:
            manifest = registry.manifest(repository, target.digest)
            if manifest is not None:
                put_manifest(
                    registry, repository, tag, manifest.data, media_type=manifest.media_type
                )
        time.sleep(0.05 * round_)
    raise RegistryError(
        f"other publishers keep moving the tags of {', '.join(name.cell for name in placed)}",
        fix="run the same command again when they have finished",
    )


def _taken(registry: Registry, repository: str, tag: str, digest: str) -> bool:
    """Tell whether a tag already names this image. Raise `CellError` if it names another image."""
    present = registry.manifest_digest(repository, tag)
    if present is None or present == digest:
        return present is not None
    raise CellError(
        f"the tag {tag} already names another image, {present}, and never moves",
        where=f"{registry.host}/{repository}",
        fix=f"use the published image, or change the lock; this image is available as @{digest}",
    )


def _yield_to_rivals(
    registry: Registry, repository: str, tag: str, digest: str, settle: float
) -> None:
    """Let publishers of other images under this tag go first, unless this image sorts first.

    A publisher that saw no rival sets the tag at once, so one that sees a rival waits for that.
    """
    ours = content_tag(tag, digest)
    rivals = content_tags(registry.tags(repository), tag)
    if ours not in rivals:
        raise RegistryError(
            f"{registry.host} does not list the tag {ours} that it has stored",
            fix="run the same command again",
        )
    if rivals == (ours,):
        return
    patience = settle if rivals[0] == ours else 3 * settle
    end = time.monotonic() + patience
    while time.monotonic() < end and not _taken(registry, repository, tag, digest):
        time.sleep(min(0.2, settle))


def _published(registry: Registry, repository: str, name: Immutable) -> Published | None:
    digest = registry.manifest_digest(repository, name.tag)
    if digest is None:
        return None
    evidence = listed(registry, repository, digest)
    return Published(
        name=name,
        digest=digest,
        at=max((item.annotations.get(CREATED, "") for item in evidence), default=""),
        verified=any(item.annotations.get(VERDICT) == State.VERIFIED for item in evidence),
    )
