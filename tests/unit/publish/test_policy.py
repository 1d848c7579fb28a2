"""Which cells may be published, and what evidence covers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.madeimages import CPU_HOST, H100_HOST, SUITE, made_lock, made_report, probe, report_cell
from torchproof.errors import EvidenceError, InputError
from torchproof.model.results import Outcome, State
from torchproof.publish.attestation.coverage import Requirement, parse_requirement, uncovered
from torchproof.publish.attestation.statement import (
    PredicateModel,
    Subject,
    make_statement,
    names_subject,
    read_statement,
)
from torchproof.publish.policy import decide
from torchproof.report.models import CellModel

DIGEST = "sha256:" + "1" * 64
CONFIG = "sha256:" + "2" * 64


def cell(**more: Any) -> CellModel:
    data = report_cell(made_lock(), "somewhere", DIGEST)
    return CellModel.model_validate(data | more)


def test_a_verified_cell_may_be_published() -> None:
    assert decide(cell()).allowed


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"verdict": "failed", "reason": "boom"}, "failed: boom"),
        ({"verdict": "blocked", "reason": "no disk"}, "blocked: no disk"),
        ({"verdict": "unproven", "reason": "no GPU"}, "unproven: no GPU"),
        ({"lock_digest": ""}, "does not name its lock"),
        ({"probes": [probe("linkage", "fail")]}, "failed: linkage"),
        ({"probes": []}, "nothing proves linkage, torch_import"),
        ({"audit": [{"rule": "a.b", "outcome": "error", "message": "m"}]}, "failed: a.b"),
    ],
)
def test_a_cell_that_its_report_does_not_support_is_refused(
    changes: dict[str, Any], reason: str
) -> None:
    decision = decide(cell(**changes))
    assert not decision.allowed
    assert reason in decision.reason


def test_an_image_without_evidence_of_its_own_is_refused() -> None:
    assert "there is no image" in decide(cell().model_copy(update={"image": None})).reason
    assert "another digest" in decide(cell().model_copy(update={"evidence": None})).reason


def test_an_ignored_rule_or_an_optional_probe_does_not_refuse() -> None:
    error = {"rule": "a.b", "outcome": "error", "message": "m"}
    policy = {"probes": [{"name": "linkage"}], "ignored": ["a.*"]}
    optional = probe("other", "fail") | {"required": False}
    assert decide(cell(audit=[error], policy=policy, probes=[probe("linkage"), optional])).allowed


unproven = {
    "verdict": "unproven",
    "reason": "no 2 GPUs",
    "policy": {"probes": [{"name": "linkage"}, {"name": "ddp_step"}, {"name": "nccl_init"}]},
    "probes": [probe("linkage"), probe("ddp_step", "skip")],
}


def test_unproven_is_accepted_only_if_every_missing_probe_is_named() -> None:
    assert not decide(cell(**unproven), ["ddp_step"]).allowed
    assert "does not name nccl_init" in decide(cell(**unproven), ["ddp_step"]).reason
    decision = decide(cell(**unproven), ["ddp_*", "nccl_init"])
    assert decision.allowed and decision.accepted == ("ddp_step", "nccl_init")


@given(st.sampled_from(State), st.lists(st.sampled_from(Outcome), max_size=4))
def test_nothing_but_passes_is_ever_published_as_verified(
    state: State, outcomes: list[Outcome]
) -> None:
    if state is State.PLANNED:
        return
    probes = [probe(f"p{number}", outcome) for number, outcome in enumerate(outcomes)]
    policy = {"probes": [{"name": one["name"]} for one in probes]}
    decision = decide(cell(verdict=state, reason="r", probes=probes, policy=policy))
    if decision.allowed:
        assert state is State.VERIFIED
        assert all(outcome is Outcome.PASS for outcome in outcomes)


def statement(*, names: frozenset[str] = frozenset({DIGEST}), **more: Any) -> bytes:
    subject = Subject(name="r.example/ai/torch", manifest=DIGEST, config=CONFIG, names=names)
    one = cell(**more)
    report = made_report(one.model_dump(mode="json"))
    return make_statement(subject, one, report, tags=["b", "a"], accepted=[], sbom=CONFIG)


def test_a_statement_can_be_read_back() -> None:
    read = read_statement(statement(), where="here")
    assert names_subject(read, DIGEST) and not names_subject(read, CONFIG)
    assert read.predicate.suite_hash == SUITE
    assert read.predicate.tags == ["a", "b"]
    assert statement() == statement()


def test_a_statement_about_another_image_cannot_be_made() -> None:
    with pytest.raises(EvidenceError):
        statement(names=frozenset({CONFIG}))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"_type": "x"}'])
def test_an_invalid_statement_is_refused(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        read_statement(data, where="here")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_statement_or_refused(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        read_statement(data, where="here")


def proven(*probes: dict[str, Any]) -> list[PredicateModel]:
    return [read_statement(statement(probes=list(probes)), where="here").predicate]


GPU = [probe("linkage", "pass", CPU_HOST), probe("ddp_step", "pass", H100_HOST)]


@pytest.mark.parametrize(
    ("requirement", "covered"),
    [
        (Requirement(), True),
        (Requirement(probes=("ddp_step",)), True),
        (Requirement(probes=("ddp_*",), driver="550.90.07", gpu="h100"), True),
        (Requirement(probes=("ddp_step",), driver="550"), True),
        (Requirement(probes=("ddp_step",), driver="550.9"), False),
        (Requirement(probes=("ddp_step",), gpu="A100"), False),
        (Requirement(probes=("linkage",), gpu="H100"), False),
        (Requirement(probes=("nothing",)), False),
        (Requirement(gpu="H100"), False),
        (Requirement(verdict="verified"), True),
        (Requirement(verdict="unproven"), False),
        (Requirement(suite=SUITE), True),
        (Requirement(suite="sha256:6"), False),
        (Requirement(cell="2.9*"), True),
        (Requirement(cell="2.7*"), False),
    ],
)
def test_evidence_covers_what_it_says(requirement: Requirement, covered: bool) -> None:
    assert (uncovered(requirement, proven(*GPU)) == ()) is covered


def test_a_failed_probe_covers_nothing_and_is_reported() -> None:
    (told,) = uncovered(Requirement(probes=("ddp_step",)), proven(probe("ddp_step", "skip")))
    assert "skip on docker" in told


@pytest.mark.parametrize("text", ["probe", "probe=", "=x", "prob=x", "verdict"])
def test_an_invalid_requirement_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_requirement([text])
