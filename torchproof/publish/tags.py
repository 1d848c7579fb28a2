"""Names of what is published. Pure.

An immutable tag, `2.9.1-cu128-py311-1a2b3c4d`, is a cell and its lock's hash: it never moves.
A content tag, `2.9.1-cu128-py311-1a2b3c4d.0f1e2d3c4b5a`, names an image as soon as all its content
is in the registry: it announces the image to other publishers and protects it from garbage
collectors. Moving tags follow from what the registry holds, by one rule for all publishers:
`2.9.1-cu128-py311` is the newest of that cell, `2.9.1-cu128` and `2.9-cu128` the newest patch
release with the oldest Python, `latest-verified` the newest of all verified images.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from packaging.version import InvalidVersion, Version

from torchproof.errors import InputError
from torchproof.model.versions import cuda_number

LATEST = "latest-verified"
_LOCK_DIGITS = 8
_CONTENT_DIGITS = 12
_CELL = re.compile(
    r"(?P<torch>\d+(?:\.\d+)+[^-]*)-(?P<cuda>cu\d+|cpu)-py(?P<python>\d{2,})(?P<rest>(?:-[\w.]+)*)"
)
_IMMUTABLE = re.compile(rf"(?P<cell>{_CELL.pattern})-(?P<lock>[0-9a-f]{{{_LOCK_DIGITS}}})")
_CONTENT = re.compile(
    rf"(?P<immutable>{_IMMUTABLE.pattern})\.(?P<digest>[0-9a-f]{{{_CONTENT_DIGITS}}})"
)
_MOVING = re.compile(rf"\d+\.\d+(?:\.\d+)?-(?:cu\d+|cpu)(?:-py\d+(?:-[\w.]+)*)?|{LATEST}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Immutable:
    """An immutable tag, parsed. `plain` is a cell without overrides."""

    tag: str
    cell: str
    torch: Version
    cuda: str
    python: int
    """311 for Python 3.11."""
    plain: bool
    lock: str
    """First digits of the lock's hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The image of an immutable tag: its manifest digest, and what its evidence says.

    `at` is the time of its newest evidence (RFC 3339), empty if it has none.
    """

    name: Immutable
    digest: str
    at: str
    verified: bool


def immutable_tag(cell: str, lock_digest: str) -> str:
    """Return the tag of a cell and its lock. Raise `InputError` if that is not a legal tag."""
    tag = f"{cell}-{lock_digest.removeprefix('sha256:')[:_LOCK_DIGITS]}"
    if not _IMMUTABLE.fullmatch(tag) or len(tag) > 128 - _CONTENT_DIGITS - 1:
        raise InputError(
            f"{tag!r} cannot be the tag of an image", fix="shorten the cell's overrides"
        )
    return tag


def content_tag(immutable: str, digest: str) -> str:
    """Return the tag that names an image until it has its immutable tag."""
    return f"{immutable}.{digest.removeprefix('sha256:')[:_CONTENT_DIGITS]}"


def content_tags(tags: Iterable[str], immutable: str) -> tuple[str, ...]:
    """Return the content tags of one immutable tag, sorted."""
    return tuple(
        sorted(
            tag
            for tag in tags
            if (found := _CONTENT.fullmatch(tag)) and found["immutable"] == immutable
        )
    )


def parse_content(tag: str) -> str | None:
    """Return the immutable tag that a content tag belongs to; None if it is not a content tag."""
    found = _CONTENT.fullmatch(tag)
    return found["immutable"] if found else None


def parse_immutable(tag: str) -> Immutable | None:
    """Parse an immutable tag; None if it is not one."""
    found = _IMMUTABLE.fullmatch(tag)
    if found is None:
        return None
    try:
        torch = Version(found["torch"])
    except InvalidVersion:
        return None
    return Immutable(
        tag=tag,
        cell=found["cell"],
        torch=torch,
        cuda=found["cuda"],
        python=int(found["python"]),
        plain=not found["rest"],
        lock=found["lock"],
    )


def is_ours(tag: str) -> bool:
    """Tell whether a tag has a form that only this tool uses."""
    return any(form.fullmatch(tag) for form in (_IMMUTABLE, _CONTENT, _MOVING))


def is_moving(tag: str) -> bool:
    """Tell whether a tag is a moving one."""
    fixed = _IMMUTABLE.fullmatch(tag) or _CONTENT.fullmatch(tag)
    return _MOVING.fullmatch(tag) is not None and not fixed


def moving_tags(name: Immutable) -> tuple[str, ...]:
    """Return the moving tags that an image may have; `best` decides whether it gets them."""
    if not name.plain:
        return (name.cell,)
    release = name.torch.release
    minor = ".".join(str(part) for part in release[:2])
    return (name.cell, f"{name.torch}-{name.cuda}", f"{minor}-{name.cuda}", LATEST)


def moving_tags_of_cell(cell: str) -> tuple[str, ...]:
    """Return the moving tags that any image of a cell may have."""
    name = parse_immutable(f"{cell}-{'0' * _LOCK_DIGITS}")
    return moving_tags(name) if name else ()


def candidates(names: Iterable[Immutable], moving: str) -> tuple[tuple[Immutable, ...], ...]:
    """Return the images that a moving tag could name, best group first; those of a group are equal.

    With `best` choosing inside a group the order is total, so all publishers that see the same
    registry decide the same, whatever their order: newest torch, newest CUDA, oldest Python.
    """
    possible = sorted(
        (name for name in names if moving in moving_tags(name)), key=_rank, reverse=True
    )
    return tuple(tuple(group) for _, group in groupby(possible, key=_rank))


def best(published: Iterable[Published], moving: str) -> Published | None:
    """Choose among equals by the newest evidence, then the highest digest; None if none has any."""
    eligible = [image for image in published if image.at and (image.verified or moving != LATEST)]
    return max(eligible, key=lambda image: (image.at, image.digest), default=None)


def _rank(name: Immutable) -> tuple[Version, int, int]:
    return (name.torch, cuda_number(name.cuda), -name.python)
