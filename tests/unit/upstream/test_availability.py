from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchproof.model.cell import Base, Cell
from torchproof.model.results import NotTried, State
from torchproof.upstream.availability import Availability, IndexOffers, home_of, judge
from torchproof.upstream.facts import load_facts
from torchproof.upstream.nearest import nearest_cells

FACTS = load_facts()


def _cell(torch: str, cuda: str, python: str = "3.11", platform: str = "linux/amd64") -> Cell:
    base = Base(image="x@sha256:" + "0" * 64)
    return Cell(torch=torch, cuda=cuda, python=python, platform=platform, base=base)


def _verdict(found: Availability) -> NotTried:
    assert found.verdict is not None
    return found.verdict


@pytest.mark.parametrize(
    ("torch", "cudas"),
    [("2.7.1", {"cu118", "cu126", "cu128"}), ("2.9.1", {"cu126", "cu128", "cu130", "cu129"})],
)
def test_what_upstream_publishes(torch: str, cudas: set[str]) -> None:
    found = {
        cuda for cuda in FACTS.cuda_names() if judge(_cell(torch, cuda), FACTS).verdict is None
    }
    assert found == cudas


def test_cu129_is_published_outside_the_matrix() -> None:
    assert "outside the release matrix" in judge(_cell("2.9.1", "cu129"), FACTS).note


@pytest.mark.parametrize(
    ("torch", "cuda", "nearest"),
    [
        ("2.7.1", "cu121", ("2.7.1-cu126-py311",)),
        ("2.7.1", "cu130", ("2.9.1-cu130-py311", "2.7.1-cu128-py311")),
        ("2.9.1", "cu118", ("2.7.1-cu118-py311", "2.9.1-cu126-py311")),
        ("2.9.1", "cu121", ("2.9.1-cu126-py311",)),
        ("2.9.0", "cu129", ("2.9.1-cu129-py311",)),
    ],
)
def test_an_unavailable_cell_has_reason_source_and_nearest(
    torch: str, cuda: str, nearest: tuple[str, ...]
) -> None:
    verdict = _verdict(judge(_cell(torch, cuda), FACTS))
    assert verdict.state == State.UNAVAILABLE
    assert "never published" in verdict.reason
    assert verdict.source
    assert verdict.nearest == nearest


def test_cmake_of_29_refuses_cuda_below_12() -> None:
    verdict = _verdict(judge(_cell("2.9.1", "cu118"), FACTS))
    assert "CMake of 2.9 refuses CUDA below 12.0" in verdict.reason
    assert "cuda.cmake" in verdict.source
    assert "CMake" not in _verdict(judge(_cell("2.9.1", "cu121"), FACTS)).reason
    assert "CMake" not in _verdict(judge(_cell("2.7.1", "cu121"), FACTS)).reason


def test_a_python_without_wheels_is_unavailable_with_a_python_that_has() -> None:
    verdict = _verdict(judge(_cell("2.7.1", "cu126", python="3.14"), FACTS))
    assert "Python 3.14" in verdict.reason
    assert verdict.nearest[0] == "2.7.1-cu126-py313"


def test_a_platform_without_wheels_is_unavailable_with_a_cuda_that_has() -> None:
    verdict = _verdict(judge(_cell("2.7.1", "cu126", platform="linux/arm64"), FACTS))
    assert verdict.nearest == ("2.7.1-cu128-py311-arm64",)


def test_a_distribution_without_the_python_says_so() -> None:
    cell = replace(_cell("2.9.1", "cu128", python="3.12"), base=Base(bootstrap="debian/bookworm"))
    verdict = _verdict(judge(cell, FACTS))
    assert "debian/bookworm has Python 3.11" in verdict.reason
    assert verdict.nearest == ("2.9.1-cu128-py311",)


def test_the_default_build_lives_on_pypi_and_others_on_their_own_index() -> None:
    assert home_of(_cell("2.7.1", "cu126"), FACTS) == "pypi"
    assert home_of(_cell("2.7.1", "cu118"), FACTS) == "pytorch/cu118"
    assert home_of(_cell("2.9.1", "cu128", platform="linux/arm64"), FACTS) == "pytorch/cu128"
    assert home_of(_cell("2.11.0", "cu130", platform="linux/arm64"), FACTS) == "pypi"


def test_an_index_that_does_not_answer_blocks_what_is_published() -> None:
    live = IndexOffers(problems={"pytorch/cu118": "it is down"})
    verdict = _verdict(judge(_cell("2.7.1", "cu118"), FACTS, live))
    assert (verdict.state, "it is down" in verdict.reason) == (State.BLOCKED, True)


def test_an_index_that_does_not_answer_makes_nothing_of_what_never_was() -> None:
    live = IndexOffers(problems={"pytorch/cu118": "it is down", "pypi": "it is down"})
    assert _verdict(judge(_cell("2.9.1", "cu118"), FACTS, live)).state == State.UNAVAILABLE


def test_the_other_index_serves_when_the_first_does_not_answer() -> None:
    offer = ("2.9.1", "cu128", "3.11", "linux/amd64")
    live = IndexOffers(problems={"pypi": "down"}, offers={"pytorch/cu128": frozenset({offer})})
    assert judge(_cell("2.9.1", "cu128"), FACTS, live) == Availability(index="pytorch/cu128")


def test_a_live_index_overrules_the_data_both_ways() -> None:
    has = IndexOffers(
        offers={"pytorch/cu121": frozenset({("2.9.1", "cu121", "3.11", "linux/amd64")})}
    )
    found = judge(_cell("2.9.1", "cu121"), FACTS, has)
    assert found.verdict is None
    assert "though the data does not list it" in found.note
    lost = IndexOffers(offers={"pytorch/cu118": frozenset()})
    verdict = _verdict(judge(_cell("2.7.1", "cu118"), FACTS, lost))
    assert verdict.state == State.UNAVAILABLE
    assert "though the data says" in verdict.reason


def test_what_was_only_derived_is_not_called_published() -> None:
    live = IndexOffers(problems={"pytorch/cu126": "it is down"})
    verdict = _verdict(judge(_cell("2.12.1", "cu126"), FACTS, live))
    assert "release matrix has it" in verdict.reason


def test_a_wheelhouse_goes_before_everything() -> None:
    live = IndexOffers(problems={"pypi": "down", "pytorch/cu121": "down"})
    found = judge(_cell("2.9.1", "cu121"), FACTS, live, wheelhouse=True)
    assert (found.index, found.verdict) == ("wheelhouse", None)


def test_what_no_source_tells_is_blocked_until_an_index_says() -> None:
    cell = _cell("2.15.0", "cu130")
    silent = IndexOffers(problems={"pytorch/cu130": "it is down"})
    verdict = _verdict(judge(cell, FACTS, silent))
    assert (verdict.state, "no source says" in verdict.reason) == (State.BLOCKED, True)
    asked = IndexOffers(offers={"pytorch/cu130": frozenset()})
    verdict = _verdict(judge(cell, FACTS, asked))
    assert verdict.state == State.UNAVAILABLE
    assert "no source shows" in verdict.reason


def test_a_slim_cell_without_device_code_for_its_gpu_is_unavailable() -> None:
    cell = replace(_cell("2.7.1", "cu126"), gpus=("sm_100",))
    verdict = _verdict(judge(cell, FACTS))
    assert "no device code for sm_100" in verdict.reason
    assert verdict.nearest == ("2.7.1-cu128-py311-sm100",)
    served = replace(_cell("2.7.1", "cu126"), gpus=("sm_89", "sm_90"))
    assert judge(served, FACTS).verdict is None


@settings(deadline=None)
@given(
    torch=st.sampled_from(sorted(FACTS.releases)),
    cuda=st.sampled_from(FACTS.cuda_names()),
    python=st.sampled_from(["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"]),
    platform=st.sampled_from(["linux/amd64", "linux/arm64"]),
)
def test_every_answer_is_whole_and_every_nearest_cell_exists(
    torch: str, cuda: str, python: str, platform: str
) -> None:
    cell = _cell(torch, cuda, python, platform)
    known = {
        replace(cell, torch=other, cuda=name, python=version).id: (other, name, version)
        for other, release in FACTS.releases.items()
        for name in release.builds
        for version in release.python_on(platform)
    }
    verdict = judge(cell, FACTS).verdict
    if verdict is None:
        assert FACTS.published(torch, cuda, python, platform)
        return
    assert verdict.reason
    assert verdict.source
    for name in nearest_cells(cell, FACTS):
        assert name != cell.id
        assert FACTS.published(*known[name], platform)
