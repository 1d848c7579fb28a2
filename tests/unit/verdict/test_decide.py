from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.report.report_samples import (
    AT,
    CPU_HOST,
    GPU_HOST,
    H200,
    POLICY,
    SUITE,
    gpu_probes,
    probe,
)
from torchproof.errors import CellError, HostError
from torchproof.model.results import (
    Built,
    Evidence,
    Finding,
    Host,
    Judged,
    Level,
    NotTried,
    Outcome,
    ProbeResult,
    State,
    SubjectKind,
    Verdict,
)
from torchproof.verdict.decide import audit_errors, decide, from_error, judge
from torchproof.verdict.policy import Policy, RequiredProbe

ERROR = Finding(rule="link.undefined", level=Level.ERROR, message="no symbol", where="/lib/x.so")


def built(subject: SubjectKind = SubjectKind.IMAGE, digest: str = "sha256:1") -> Built:
    return Built(
        cell="c", subject=subject, ref="r", digest=digest, size=1, layers=(), plan_hash="p",
        seconds=1.0,
    )  # fmt: skip


def verdict(
    probes: list[ProbeResult],
    *,
    findings: list[Finding] | None = [],  # noqa: B006
    policy: Policy = POLICY,
    host: Host = GPU_HOST,
    subject: SubjectKind = SubjectKind.IMAGE,
    digest: str = "sha256:1",
) -> Verdict:
    return decide(
        built=built(subject, digest),
        findings=findings,
        probes=probes,
        policy=policy,
        suite_hash=SUITE,
        host=host,
        at=AT,
    )


def replaced(name: str, outcome: Outcome, code: str = "x", message: str = "m") -> list[ProbeResult]:
    return [
        probe(name, outcome, code, message=message) if one.name == name else one
        for one in gpu_probes()
    ]


def test_all_required_probes_passed_is_verified() -> None:
    found = verdict(gpu_probes())
    assert found.state is State.VERIFIED
    assert found.evidence is not None and found.evidence.digest == "sha256:1"


def test_a_required_audit_error_fails_without_any_probe() -> None:
    found = verdict([], findings=[ERROR])
    assert found.state is State.FAILED
    assert found.reason == "audit link.undefined: no symbol (/lib/x.so)"


def test_an_ignored_audit_error_does_not_fail() -> None:
    policy = Policy(probes=POLICY.probes, ignored=("link.*",))
    assert verdict(gpu_probes(), findings=[ERROR], policy=policy).state is State.VERIFIED
    assert audit_errors([ERROR], policy) == []


def test_a_rule_that_is_not_required_does_not_fail() -> None:
    policy = Policy(probes=POLICY.probes, rules=("pins.*",))
    assert verdict(gpu_probes(), findings=[ERROR], policy=policy).state is State.VERIFIED


@pytest.mark.parametrize("level", [Level.NOTE, Level.WARNING, Level.PASS])
def test_less_than_an_error_does_not_fail(level: Level) -> None:
    finding = Finding(rule="size.drift", level=level, message="m")
    assert verdict(gpu_probes(), findings=[finding]).state is State.VERIFIED


def test_an_audit_that_did_not_run_is_never_verified() -> None:
    found = verdict(gpu_probes(), findings=None)
    assert (found.state, found.reason) == (State.UNPROVEN, "the audit did not run")


def test_a_failed_probe_is_named_with_its_code() -> None:
    found = verdict(replaced("ddp_step", Outcome.FAIL, "gradient_mismatch", "off by 0.3"))
    assert (found.state, found.reason) == (
        State.FAILED,
        "ddp_step: gradient_mismatch: off by 0.3",
    )


def test_a_timeout_fails() -> None:
    found = verdict(replaced("nccl_init", Outcome.TIMEOUT, "timeout", "no answer in 60 s"))
    assert (found.state, found.reason) == (
        State.FAILED,
        "nccl_init: timed out: no answer in 60 s",
    )


def test_a_fault_of_the_host_blocks_and_is_named() -> None:
    found = verdict(replaced("nccl_init", Outcome.HOST_FAULT, "no_toolkit", "no nvidia runtime"))
    assert isinstance(found, NotTried)
    assert found.state is State.BLOCKED
    assert found.reason == "the host is at fault: nccl_init: no_toolkit: no nvidia runtime"
    assert found.evidence is not None


def test_a_fault_of_the_image_outweighs_one_of_the_host() -> None:
    probes = replaced("nccl_init", Outcome.HOST_FAULT)
    probes[0] = probe("versions", Outcome.FAIL, "cudnn_mismatch")
    assert verdict(probes).state is State.FAILED


def test_skipped_probes_are_named_with_the_gpus_they_need() -> None:
    probes = [
        *gpu_probes()[:2],
        *(probe(p.name, Outcome.SKIP, "no_gpu") for p in gpu_probes()[2:]),
    ]
    found = verdict(probes, host=CPU_HOST)
    assert (found.state, found.reason) == (
        State.UNPROVEN,
        "needs 2 GPUs: nccl_init, ddp_step, allreduce_bandwidth",
    )


def test_a_probe_that_was_not_run_is_named() -> None:
    found = verdict(gpu_probes()[1:])
    assert (found.state, found.reason) == (State.UNPROVEN, "not run: versions")


def test_a_skip_for_another_reason_names_the_reason() -> None:
    found = verdict(replaced("torchrun", Outcome.SKIP, "no_shm", "no /dev/shm here"))
    assert found.reason == "skipped: torchrun (no /dev/shm here)"


def test_two_ranks_on_one_gpu_do_not_pass_for_two_gpus() -> None:
    probes = [
        probe(one.name, metrics={"ranks_per_gpu": 2}) if one.name == "ddp_step" else one
        for one in gpu_probes()
    ]
    found = verdict(probes)
    assert found.state is State.UNPROVEN
    assert "ddp_step (ran with several ranks on one GPU)" in found.reason


def test_a_pass_on_too_few_gpus_does_not_count() -> None:
    one_gpu = Host(engine="docker", driver="570", gpus=(H200,))
    found = verdict(gpu_probes(), host=one_gpu)
    assert (found.state, found.reason) == (
        State.UNPROVEN,
        "needs 2 GPUs: nccl_init, ddp_step, allreduce_bandwidth",
    )


def test_a_pass_on_another_host_replaces_a_skip_here() -> None:
    skipped = [probe(p.name, Outcome.SKIP, "no_gpu", host=CPU_HOST) for p in gpu_probes()[2:]]
    passed = [
        probe(p.name, host=GPU_HOST if p.name in {s.name for s in skipped} else CPU_HOST)
        for p in gpu_probes()
    ]
    found = verdict([*skipped, *passed], host=CPU_HOST)
    assert (found.state, found.reason) == (
        State.VERIFIED,
        "5 required probes passed on 2 hosts",
    )


def test_a_fail_beats_a_pass_of_the_same_probe() -> None:
    assert verdict([*gpu_probes(), probe("versions", Outcome.FAIL)]).state is State.FAILED


def test_an_environment_is_never_verified() -> None:
    found = verdict(gpu_probes(), subject=SubjectKind.ENVIRONMENT)
    assert (found.state, found.reason) == (State.UNPROVEN, "no image was built")


def test_nothing_required_proves_nothing() -> None:
    found = verdict([probe("versions", required=False)], policy=Policy())
    assert (found.state, found.reason) == (
        State.UNPROVEN,
        "no probe is required, so nothing is proven",
    )


def test_an_optional_failure_is_mentioned_but_does_not_fail() -> None:
    optional = probe("deepspeed", Outcome.FAIL, "import_error", required=False)
    found = verdict([*gpu_probes(), optional])
    assert (found.state, found.reason) == (
        State.VERIFIED,
        "5 required probes passed; optional and failed: deepspeed",
    )


def test_an_error_of_the_cell_fails_it_with_the_lock_as_subject() -> None:
    found = from_error(
        CellError("torch.whl has the wrong sha256", where="lock.yaml"),
        subject=SubjectKind.LOCK,
        digest="sha256:lock",
        suite_hash=SUITE,
        host=CPU_HOST,
        at=AT,
    )
    assert isinstance(found, Judged)
    assert (found.state, found.reason) == (
        State.FAILED,
        "lock.yaml: torch.whl has the wrong sha256",
    )


def test_an_error_of_the_host_blocks_and_keeps_what_was_found() -> None:
    found = from_error(
        HostError("the Docker daemon is gone", fix="start it"),
        subject=SubjectKind.IMAGE,
        digest="sha256:1",
        suite_hash=SUITE,
        host=CPU_HOST,
        at=AT,
        findings=[],
        probes=gpu_probes()[:1],
    )
    assert isinstance(found, NotTried)
    assert (found.state, found.fix) == (State.BLOCKED, "start it")
    assert found.evidence is not None and len(found.evidence.probes) == 1


HOSTS = st.sampled_from([CPU_HOST, GPU_HOST, Host(engine="docker", gpus=(H200,))])
RESULTS = st.builds(
    ProbeResult,
    name=st.sampled_from(["versions", "torchrun", "nccl_init", "ddp_step", "extra"]),
    outcome=st.sampled_from(Outcome),
    code=st.just("c"),
    seconds=st.just(1.0),
    required=st.booleans(),
    host=st.none() | HOSTS,
    metrics=st.sampled_from([{}, {"ranks_per_gpu": 1}, {"ranks_per_gpu": 2}]),
)
EVIDENCE = st.builds(
    Evidence,
    subject=st.sampled_from(SubjectKind),
    digest=st.sampled_from(["", "sha256:1"]),
    suite_hash=st.just(SUITE),
    host=HOSTS,
    at=st.just(AT),
    audited=st.booleans(),
    audit=st.lists(st.sampled_from([ERROR]), max_size=1).map(tuple),
    probes=st.lists(RESULTS, max_size=8).map(tuple),
)
POLICIES = st.builds(
    Policy,
    probes=st.lists(
        st.builds(
            RequiredProbe,
            name=st.sampled_from(["versions", "torchrun", "nccl_init", "ddp_step"]),
            gpus=st.integers(0, 2),
        ),
        max_size=4,
        unique_by=lambda one: one.name,
    ).map(tuple),
)


@given(EVIDENCE, POLICIES)
def test_verified_means_every_required_probe_passed_with_its_gpus_on_an_image(
    evidence: Evidence, policy: Policy
) -> None:
    if judge(evidence, policy).state is not State.VERIFIED:
        return
    assert evidence.subject is SubjectKind.IMAGE
    assert evidence.digest
    assert evidence.audited
    assert not evidence.audit
    assert policy.probes or any(result.required for result in evidence.probes)
    for needed in policy.probes:
        results = [result for result in evidence.probes if result.name == needed.name]
        assert not any(r.outcome in (Outcome.FAIL, Outcome.TIMEOUT) for r in results)
        assert any(
            r.outcome is Outcome.PASS and len((r.host or evidence.host).gpus) >= needed.gpus
            for r in results
        )


@given(EVIDENCE, POLICIES)
def test_every_verdict_carries_its_evidence_and_a_reason(
    evidence: Evidence, policy: Policy
) -> None:
    found = judge(evidence, policy)
    assert found.evidence is evidence
    assert found.reason


@given(EVIDENCE, POLICIES, st.randoms())
def test_the_order_of_results_does_not_change_the_state(
    evidence: Evidence, policy: Policy, random: object
) -> None:
    probes = list(evidence.probes)
    random.shuffle(probes)  # type: ignore[attr-defined]
    shuffled = Evidence(
        subject=evidence.subject,
        digest=evidence.digest,
        suite_hash=evidence.suite_hash,
        host=evidence.host,
        at=evidence.at,
        audited=evidence.audited,
        audit=evidence.audit,
        probes=tuple(probes),
    )
    assert judge(shuffled, policy).state is judge(evidence, policy).state


@given(EVIDENCE, POLICIES)
def test_a_required_failure_can_never_be_hidden_by_more_results(
    evidence: Evidence, policy: Policy
) -> None:
    if not policy.probes:
        return
    failing = Evidence(
        subject=evidence.subject,
        digest=evidence.digest,
        suite_hash=evidence.suite_hash,
        host=evidence.host,
        at=evidence.at,
        audited=evidence.audited,
        audit=evidence.audit,
        probes=(*evidence.probes, probe(policy.probes[0].name, Outcome.FAIL)),
    )
    assert judge(failing, policy).state is State.FAILED
