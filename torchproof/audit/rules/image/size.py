"""Family `size`: layers that registries refuse, images that grow, bytes there for nothing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from torchproof.audit.facts import FileKind, ImageFacts, Subject
from torchproof.audit.rule import Rule, rules_of
from torchproof.model.lock import LayerName
from torchproof.model.results import Finding

GB: Final = 10**9
GROWTH: Final = 0.10
GROWTH_BYTES: Final = 100 * 10**6


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest layer that a registry takes, bytes compressed."""

    registry: str
    size: int
    source: str


LIMITS: Final = (
    Limit("some private registries", 8 * GB, "Azure/azureml-assets#4457"),
    Limit("ghcr.io", 10 * GB, "GitHub Container registry, limits: 10 GB and 10 minutes a layer"),
)
CACHES: Final = re.compile(
    r"^/(root|home/[^/]+)/\.cache/(pip|uv|conda|huggingface)/|^/var/cache/apt/archives/.*\.deb$"
    r"|^(/[^/]+)*/conda/pkgs/"
)
STATIC: Final = re.compile(r"/(libcu|libnv|libnccl|libcudnn)[\w-]*_static[\w-]*\.a$")


def layer_limit(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find layers above what registries take; of a lock, from the sizes of its wheels."""
    sizes = [
        (layer.created_by or f"layer {number + 1}", layer.packed or layer.size, bool(layer.packed))
        for number, layer in enumerate(facts.layers)
    ]
    if not sizes and facts.lock is not None:
        sizes = [
            (f"`{name}`", sum(wheel.size for wheel in facts.lock.layer(name)), True)
            for name in LayerName
        ]
    for name, size, packed in sizes:
        over = [limit for limit in LIMITS if size > limit.size]
        if over:
            takes = "; ".join(f"{limit.registry} takes {limit.size / GB:.0f} GB" for limit in over)
            state = "" if packed else " before compression"
            report = rule.error if packed and len(over) == len(LIMITS) else rule.warning
            yield report(
                f"layer {name[:60]} has {size / GB:.1f} GB{state}: {takes}", where=name[:60]
            )


def growth(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find an image that grew by more than 10 % or 100 MB since the last report."""
    if facts.before is None or not facts.layers:
        return
    now = facts.before.now or sum(layer.size for layer in facts.layers)
    then = facts.before.size
    if then > 0 and (now - then > GROWTH_BYTES or now > then * (1 + GROWTH)):
        yield rule.error(
            f"the image grew from {then / 1e6:.0f} MB to {now / 1e6:.0f} MB since "
            f"{facts.before.source} (allowed: 10 % or 100 MB, whichever is less)",
            where=facts.name,
        )


def left_behind(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find caches and static libraries, which nothing uses when the image runs."""
    if facts.subject not in (Subject.IMAGE, Subject.ROOT):
        return
    found: dict[str, int] = defaultdict(int)
    first: dict[str, str] = {}
    for entry in facts.files.values():
        if entry.kind is not FileKind.FILE:
            continue
        kind = ""
        if CACHES.match(entry.path):
            kind = "caches of package managers"
        elif STATIC.search(entry.path):
            kind = "static CUDA libraries"
        if kind:
            found[kind] += entry.size
            first.setdefault(kind, entry.path)
    for kind, size in found.items():
        if size > GROWTH_BYTES:
            yield rule.warning(
                f"{size / 1e6:.0f} MB of {kind}, as {first[kind]}", where=first[kind]
            )


RULES: Final = rules_of(
    "size",
    (
        "layer",
        layer_limit,
        "A push that stops because one layer is larger than the registry takes.",
        "install torch and the nvidia wheels in steps of their own",
        "Azure/azureml-assets#4457, osrf/rocker#309",
    ),
    (
        "growth",
        growth,
        "Images that grow unnoticed until pulls take minutes.",
        "find the layer that grew; if it is meant, remove the old report or ignore this rule once",
        "opendatahub-io/notebooks, its image-size gate",
    ),
    (
        "left",
        left_behind,
        "Bytes that every pull brings and nothing uses.",
        "remove them in the step that makes them (`--no-cache-dir`, a cache mount)",
        "pytorch/pytorch#116696",
    ),
)
