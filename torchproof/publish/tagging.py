"""Tags in a registry: put immutable ones once, move the others together, beside other publishers.

A registry has no compare-and-swap. Immutable tags are announced by content tags before they are
put, so publishers of different images under one name see each other. Moving tags are a function of
what the registry holds (`tags.candidates`, `tags.best`): whoever writes last looks again, and so
leaves them right whatever others did in between.
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
"""Seconds to let another publisher of the same immutable tag finish."""
_ROUNDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A moving tag and where it points now; `before` is None if it was not there."""

    tag: str
    digest: str
    name: str
    before: str | None


def put_immutable(
    registry: Registry, repository: str, tag: str, digest: str, *, settle: float = SETTLE
) -> bool:
    """Give an image its immutable tag; False if it had it already.

    Raises `CellError` if the tag names, or another publisher just gave it to, another image.
    """
    if _taken(registry, repository, tag, digest):
        return False
    _yield_to_rivals(registry, repository, tag, digest, settle)
    if _taken(registry, repository, tag, digest):
        return False
    manifest = registry.manifest(repository, digest)
    if manifest is None:
        raise RegistryError(
            f"{registry.host} does not have {digest} any more", fix="run the same command again"
        )
    put_manifest(registry, repository, tag, manifest.data, media_type=manifest.media_type)
    if not _taken(registry, repository, tag, digest):
        raise RegistryError(
            f"{registry.host} stored {tag}, but does not have it",
            fix="run the same command again",
        )
    return True


def plan_moves(
    registry: Registry, repository: str, placed: Sequence[Immutable]
) -> Mapping[str, Published]:
    """Decide where the moving tags of these images point, from what the registry holds now.

    Raises `RegistryError` if it does not show these images or their evidence: it is not to be
    trusted with a decision then.
    """
    names = [one for tag in registry.tags(repository) if (one := parse_immutable(tag))]
    known = {one.tag: _describe(registry, repository, one) for one in placed}
    for own in placed:
        seen = known[own.tag]
        if own not in names or seen is None or not seen.at:
            raise RegistryError(
                f"{registry.host} does not show {own.tag} and its evidence, which it has stored",
                fix="run the same command again",
            )

    def describe(name: Immutable) -> Published | None:
        if name.tag not in known:
            known[name.tag] = _describe(registry, repository, name)
        return known[name.tag]

    chosen = {}
    for moving in sorted({tag for one in placed for tag in moving_tags(one)}):
        for group in candidates(names, moving):
            able = best((seen for name in group if (seen := describe(name))), moving)
            if able is not None:
                chosen[moving] = able
                break
    return chosen


def move(registry: Registry, repository: str, placed: Sequence[Immutable]) -> tuple[Moved, ...]:
    """Move the tags that these images may carry to where they belong, until none is left."""
    before: dict[str, str | None] = {}
    for round_ in range(_ROUNDS):
        chosen = plan_moves(registry, repository, placed)
        left = []
        for tag, target in chosen.items():
            now = registry.manifest_digest(repository, tag)
            before.setdefault(tag, now)
            if now != target.digest:
                left.append((tag, target))
        if not left:
            return tuple(
                Moved(tag=tag, digest=one.digest, name=one.name.tag, before=before[tag])
                for tag, one in chosen.items()
            )
        for tag, target in left:
            manifest = registry.manifest(repository, target.digest)
            if manifest is not None:
                put_manifest(
                    registry, repository, tag, manifest.data, media_type=manifest.media_type
                )
        time.sleep(0.05 * round_)
    raise RegistryError(
        f"other publishers keep moving the tags of {', '.join(one.cell for one in placed)}",
        fix="run the same command again when they are done",
    )


def _taken(registry: Registry, repository: str, tag: str, digest: str) -> bool:
    """Tell whether a tag is ours already. Raise `CellError` if it is another image's."""
    present = registry.manifest_digest(repository, tag)
    if present is None or present == digest:
        return present is not None
    raise CellError(
        f"the tag {tag} names another image already, {present}, and never moves",
        where=f"{registry.host}/{repository}",
        fix=f"use the published image, or change the lock; this one can be had as @{digest}",
    )


def _yield_to_rivals(
    registry: Registry, repository: str, tag: str, digest: str, settle: float
) -> None:
    """Let publishers of other images under this tag go first, unless this image sorts first.

    Whoever saw no rival puts the tag at once, so a rival that sees one waits for that to show.
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


def _describe(registry: Registry, repository: str, name: Immutable) -> Published | None:
    digest = registry.manifest_digest(repository, name.tag)
    if digest is None:
        return None
    evidence = listed(registry, repository, digest)
    return Published(
        name=name,
        digest=digest,
        at=max((one.annotations.get(CREATED, "") for one in evidence), default=""),
        verified=any(one.annotations.get(VERDICT) == State.VERIFIED for one in evidence),
    )
