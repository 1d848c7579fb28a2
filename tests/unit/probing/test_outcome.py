"""What exit codes and output of a script mean."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchproof._process import RunResult
from torchproof.model.results import Gpu, Host, Outcome, ProbeResult
from torchproof.probing.outcome import interpret
from torchproof.probing.script import Probe

H200 = Gpu(model="NVIDIA H200", arch="sm_90")


def probe(**changes: object) -> Probe:
    values: dict[str, object] = {"name": "p", "path": Path("p.py"), "summary": "s"} | changes
    return Probe(**values)  # type: ignore[arg-type]


def ended(
    code: int | None,
    stdout: object = "",
    stderr: str = "",
    *,
    of: Probe | None = None,
    gpus: int = 0,
    ranks_per_gpu: int = 1,
) -> ProbeResult:
    text = stdout if isinstance(stdout, str) else json.dumps(stdout)
    return interpret(
        of or probe(),
        RunResult(exit_code=code, stdout=text, stderr=stderr, seconds=1.0),
        required=True,
        host=Host(engine="test", gpus=(H200,) * gpus),
        ranks_per_gpu=ranks_per_gpu,
    )


OK = {"code": "ok", "message": "fine", "fix": "", "metrics": {"x": 1}}


def test_zero_and_ok_is_a_pass() -> None:
    result = ended(0, OK)
    assert (result.outcome, result.code, result.metrics) == (Outcome.PASS, "ok", {"x": 1})


def test_one_is_a_failure_with_the_scripts_own_code() -> None:
    result = ended(1, {"code": "shm_small", "message": "m", "fix": "f"})
    assert (result.outcome, result.code, result.fix) == (Outcome.FAIL, "shm_small", "f")


def test_seventy_seven_is_a_skip() -> None:
    assert ended(77, {"code": "no_gpu"}).outcome is Outcome.SKIP


@pytest.mark.parametrize("code", [1, 77, 2, 3, 125])
def test_a_script_that_says_ok_and_exits_otherwise_did_not_pass(code: int) -> None:
    assert ended(code, OK).outcome is Outcome.FAIL


def test_zero_without_ok_is_a_contradiction() -> None:
    assert ended(0, {"code": "broken"}).code == "contradiction"


def test_no_output_is_a_failure_of_its_own() -> None:
    assert (ended(0).outcome, ended(0).code) == (Outcome.FAIL, "no_json")


def test_garbage_is_a_failure_of_its_own() -> None:
    result = ended(0, "all is well!\n")
    assert (result.outcome, result.code) == (Outcome.FAIL, "garbage")
    assert "all is well!" in result.message


def test_two_answers_are_none() -> None:
    assert ended(0, f"{json.dumps(OK)}\n{json.dumps(OK)}").code == "many_answers"


def test_a_greeting_of_the_entrypoint_is_no_garbage() -> None:
    assert ended(0, f"== Welcome ==\n{json.dumps(OK)}\n").outcome is Outcome.PASS


@pytest.mark.parametrize(("number", "code"), [(-9, "sigkill"), (137, "sigkill"), (-11, "sigsegv")])
def test_death_by_a_signal_names_the_signal(number: int, code: str) -> None:
    result = ended(number, OK)
    assert (result.outcome, result.code) == (Outcome.FAIL, code)


def test_a_bus_error_names_shared_memory() -> None:
    assert ended(-7).code == "shm_small"


def test_a_hard_end_is_a_timeout_and_says_where_it_stood() -> None:
    stacks = 'Current thread 0x1 (most recent call first):\n  File "/p/x.py", line 7 in waits\n'
    result = ended(None, "", stacks)
    assert result.outcome is Outcome.TIMEOUT
    assert "waits" in result.message


def test_a_hang_that_the_script_ended_is_a_timeout() -> None:
    assert ended(1, {"code": "hang", "message": "rank 1"}).outcome is Outcome.TIMEOUT


def test_a_fault_of_the_host_is_not_the_images() -> None:
    said = {"code": "exception", "message": "RuntimeError: Error 802: system not yet initialized"}
    result = ended(1, said)
    assert (result.outcome, result.code) == (Outcome.HOST_FAULT, "system_not_ready")
    assert "fabricmanager" in result.fix


def test_a_cause_is_found_in_the_log() -> None:
    said = {"code": "rank_failed", "message": "rank 1: unhandled system error"}
    log = "NCCL WARN Error while creating shared memory segment nccl-shm-recv (size 9637888)"
    assert ended(1, said, log).code == "shm_small"


def test_a_script_that_names_its_finding_is_not_overruled_by_its_log() -> None:
    assert ended(1, {"code": "wrong_sum"}, "Connection refused").code == "wrong_sum"


def test_a_pass_with_too_few_gpus_is_a_skip() -> None:
    result = ended(0, OK, of=probe(gpus=2), gpus=1)
    assert (result.outcome, result.code) == (Outcome.SKIP, "too_few_gpus")


def test_shared_gpus_are_never_a_pass_on_two() -> None:
    result = ended(0, OK, of=probe(gpus=2), gpus=2, ranks_per_gpu=2)
    assert (result.outcome, result.code) == (Outcome.SKIP, "shared_gpu")


def test_enough_gpus_are_a_pass() -> None:
    assert ended(0, OK, of=probe(gpus=2), gpus=2).outcome is Outcome.PASS


def test_a_probe_on_trial_passes_by_the_failure_it_has_to_find() -> None:
    trial = probe(expect="shm_small")
    assert ended(1, {"code": "shm_small"}, of=trial).outcome is Outcome.PASS
    assert ended(0, OK, of=trial).code == "blind"
    assert ended(1, {"code": "other"}, of=trial).outcome is Outcome.FAIL


@given(code=st.integers(-64, 255), stdout=st.text(), stderr=st.text())
def test_nothing_but_an_ok_object_ever_passes(code: int, stdout: str, stderr: str) -> None:
    assert ended(code, stdout, stderr).outcome is not Outcome.PASS


@given(
    code=st.integers(0, 255),
    said=st.dictionaries(
        st.sampled_from(["code", "message", "fix", "metrics"]),
        st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2),
    ),
)
def test_any_object_is_read_without_an_error(code: int, said: dict[str, object]) -> None:
    result = ended(code, said)
    assert result.outcome is not Outcome.PASS or (code == 0 and said["code"] == "ok")


def test_a_collective_that_never_ended_is_a_timeout() -> None:
    said = {"code": "rank_failed", "message": "rank 0: Timed out waiting 25000ms for recv"}
    result = ended(1, said)
    assert (result.outcome, result.code) == (Outcome.TIMEOUT, "collective_timeout")
