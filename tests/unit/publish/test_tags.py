"""Tags: immutable ones, and where the moving ones go."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchproof.errors import InputError
from torchproof.publish.tags import (
    LATEST,
    Immutable,
    Published,
    best,
    candidates,
    content_tag,
    content_tags,
    immutable_tag,
    is_moving,
    is_ours,
    moving_tags,
    parse_content,
    parse_immutable,
)

LOCK = "sha256:" + "ab12cd34" * 8
IMAGE = "sha256:" + "0f1e2d3c4b5a" + "0" * 52
cells = st.builds(
    lambda torch, cuda, python, rest: f"2.{torch[0]}.{torch[1]}-cu{cuda}-py{python}{rest}",
    st.tuples(st.integers(0, 30), st.integers(0, 9)),
    st.sampled_from([118, 121, 126, 128, 130]),
    st.sampled_from([39, 310, 311, 314]),
    st.sampled_from(["", "-nccl2.30.7", "-cudnn9.10.2.21-nccl2.30.7", "-sm90", "-arm64", "-sm90a"]),
)


def name(cell: str, lock: str = LOCK) -> Immutable:
    parsed = parse_immutable(immutable_tag(cell, lock))
    assert parsed is not None
    return parsed


def published(cell: str, at: str, digest: str = IMAGE, *, verified: bool = True) -> Published:
    return Published(name=name(cell), digest=digest, at=at, verified=verified)


@given(cells)
def test_the_kinds_of_tags_are_distinguished(cell: str) -> None:
    tag = immutable_tag(cell, LOCK)
    content = content_tag(tag, IMAGE)
    assert name(cell).cell == cell
    assert parse_content(content) == tag and parse_content(tag) is None
    assert not is_moving(tag) and not is_moving(content)
    assert parse_immutable(content) is None
    for moving in moving_tags(name(cell)):
        assert is_moving(moving) and is_ours(moving) and parse_immutable(moving) is None
    assert is_ours(tag) and is_ours(content)


@pytest.mark.parametrize("tag", ["production", "2.9.1", "v2.9.1-cu128", "sha256-" + "0" * 64])
def test_foreign_tags_are_not_ours(tag: str) -> None:
    assert not is_ours(tag)


def test_a_plain_cell_may_have_the_short_tags() -> None:
    assert moving_tags(name("2.9.1-cu128-py311")) == (
        "2.9.1-cu128-py311",
        "2.9.1-cu128",
        "2.9-cu128",
        "latest-verified",
    )


def test_an_override_has_only_the_tag_of_its_own_name() -> None:
    cell = "2.9.1-cu128-py311-nccl2.30.7"
    assert moving_tags(name(cell)) == (cell,)


@pytest.mark.parametrize("cell", ["2.9.1", "2.9.1-cu128-py311-" + "x" * 120, "a b-cu128-py311"])
def test_a_cell_that_is_not_a_legal_tag_is_refused(cell: str) -> None:
    with pytest.raises(InputError):
        immutable_tag(cell, LOCK)


def test_content_tags_of_one_immutable_tag_are_found() -> None:
    tag = immutable_tag("2.9.1-cu128-py311", LOCK)
    tags = [content_tag(tag, IMAGE), tag, content_tag(tag.replace("py311", "py312"), IMAGE)]
    assert content_tags(tags, tag) == (tags[0],)


def first(names: list[Immutable], moving: str) -> str:
    return candidates(names, moving)[0][0].cell


def test_the_newest_patch_then_the_oldest_python_comes_first() -> None:
    names = [
        name(cell) for cell in ("2.9.9-cu128-py311", "2.9.10-cu128-py312", "2.9.10-cu128-py311")
    ]
    assert first(names, "2.9-cu128") == "2.9.10-cu128-py311"
    assert first(names, "2.9.9-cu128") == "2.9.9-cu128-py311"
    assert candidates(names, "2.8-cu128") == ()


def test_the_latest_has_the_newest_cuda_and_is_verified() -> None:
    names = [name(cell) for cell in ("2.9.1-cu128-py311", "2.9.1-cu130-py311", "2.8.0-cu130-py311")]
    assert first(names, LATEST) == "2.9.1-cu130-py311"
    accepted = published("2.9.1-cu130-py311", "2026", verified=False)
    assert best([accepted], LATEST) is None
    assert best([accepted], "2.9.1-cu130") is accepted


def test_without_evidence_nothing_is_chosen() -> None:
    assert best([published("2.9.1-cu128-py311", "")], "2.9-cu128") is None


@given(st.lists(cells, min_size=1, unique=True), st.randoms())
def test_the_order_of_a_registrys_list_does_not_matter(
    found: list[str], shuffler: random.Random
) -> None:
    names = [name(cell) for cell in found]
    shuffled = names.copy()
    shuffler.shuffle(shuffled)
    for moving in {tag for one in names for tag in moving_tags(one)}:
        one, other = candidates(names, moving), candidates(shuffled, moving)
        assert [set(group) for group in one] == [set(group) for group in other]
