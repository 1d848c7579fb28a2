from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.report.report_samples import (
    AT,
    CPU_HOST,
    GPU_HOST,
    LOCK_27,
    POLICY,
    SUITE,
    VENV_HOST,
    blocked,
    cpu_probes,
    default_cells,
    environment,
    every_verdict,
    gpu_probes,
    image,
    judged,
    probe,
    sha,
    unavailable,
)
from torchproof.commands.proving.report import run
from torchproof.errors import CellError, HostError, InputError
from torchproof.model.cell import Cell
from torchproof.model.results import Host, Outcome, ProbeResult, State, SubjectKind
from torchproof.report import make_report, merge, read_report, report_cell, write_reports
from torchproof.report.logs import gather_logs
from torchproof.report.models import CellModel, ReportModel
from torchproof.verdict.decide import from_error

CELL = Cell(torch="2.7.1", cuda="cu126")
LATER = "2026-11-30T11:00:00Z"


def report(
    *cells: CellModel, host: Host = CPU_HOST, at: str = AT, suite: str = SUITE
) -> ReportModel:
    return make_report(cells, host=host, suite_hash=suite, generated_at=at)


def run_of(
    probes: list[ProbeResult], host: Host, *, at: str = AT, suite: str = SUITE
) -> ReportModel:
    cell = judged(CELL, image(CELL), probes, host, lock=LOCK_27, at=at, suite=suite)
    return report(cell, host=host, at=at, suite=suite)


CPU_RUN = run_of(cpu_probes(), CPU_HOST)
GPU_ONLY = run_of(gpu_probes()[2:], GPU_HOST, at=LATER)
"""A GPU machine that ran what the CPU machine had to skip."""


def only(merged: ReportModel) -> CellModel:
    (cell,) = merged.cells
    return cell


def test_a_cpu_run_and_a_gpu_run_prove_one_image_together() -> None:
    assert only(CPU_RUN).verdict is State.UNPROVEN
    assert only(GPU_ONLY).verdict is State.UNPROVEN
    cell = only(merge([CPU_RUN, GPU_ONLY]))
    assert (cell.verdict, cell.reason) == (State.VERIFIED, "5 required probes passed on 2 hosts")
    hosts = {one.name: one.host.engine for one in cell.probes if one.required}
    assert hosts["versions"] == CPU_HOST.engine
    assert hosts["ddp_step"] == GPU_HOST.engine
    assert not any(one.outcome is Outcome.SKIP for one in cell.probes)


def test_the_merged_report_names_every_machine_the_most_capable_first() -> None:
    merged = merge([CPU_RUN, GPU_ONLY])
    assert [one.engine for one in merged.machines] == [GPU_HOST.engine, CPU_HOST.engine]
    assert merged.host == merged.machines[0]
    assert merged.generated_at == LATER


def test_a_fail_on_one_host_beats_a_pass_on_another_and_both_stay_visible() -> None:
    failing = run_of([probe("versions", Outcome.FAIL, "cudnn_mismatch")], CPU_HOST)
    cell = only(merge([run_of(gpu_probes(), GPU_HOST), failing]))
    assert cell.verdict is State.FAILED
    seen = {(one.outcome, one.host.engine) for one in cell.probes if one.name == "versions"}
    assert seen == {(Outcome.PASS, GPU_HOST.engine), (Outcome.FAIL, CPU_HOST.engine)}


def test_a_pass_on_one_host_outweighs_the_fault_of_another() -> None:
    faulty = [probe("nccl_init", Outcome.HOST_FAULT, "nvml_lost"), *gpu_probes()[:2]]
    assert only(run_of(faulty, CPU_HOST)).verdict is State.BLOCKED
    assert only(merge([run_of(faulty, CPU_HOST), GPU_ONLY])).verdict is State.VERIFIED


def test_evidence_of_another_digest_does_not_count() -> None:
    rebuilt = image(CELL).__class__(
        **{name: getattr(image(CELL), name) for name in image(CELL).__slots__}
        | {"digest": sha("rebuilt")}
    )
    gpu = judged(CELL, rebuilt, gpu_probes()[2:], GPU_HOST, lock=LOCK_27, at=LATER)
    cell = only(merge([CPU_RUN, report(gpu, host=GPU_HOST, at=LATER)]))
    assert cell.verdict is State.UNPROVEN
    assert cell.evidence and cell.evidence.digest == rebuilt.digest
    assert cell.image and cell.image.digest == rebuilt.digest
    (other,) = cell.other_evidence
    assert other.digest == image(CELL).digest
    assert "another image" in other.why


def test_evidence_of_another_probe_suite_does_not_count() -> None:
    new = run_of(gpu_probes()[2:], GPU_HOST, at=LATER, suite=sha("new suite"))
    cell = only(merge([CPU_RUN, new]))
    assert cell.verdict is State.UNPROVEN
    assert "another probe suite" in cell.other_evidence[0].why


def test_an_image_outranks_an_environment_however_new() -> None:
    venv = judged(CELL, environment(CELL), gpu_probes(), VENV_HOST, lock=LOCK_27, at=LATER)
    cell = only(merge([report(venv, host=VENV_HOST, at=LATER), run_of(gpu_probes(), GPU_HOST)]))
    assert cell.verdict is State.VERIFIED
    assert cell.other_evidence[0].subject is SubjectKind.ENVIRONMENT


def test_a_run_that_was_tried_outranks_one_that_was_cut_off() -> None:
    cut_off = report(blocked(CELL))
    assert only(merge([cut_off, CPU_RUN])).verdict is State.UNPROVEN


def test_unavailable_outranks_blocked() -> None:
    gone = unavailable(CELL, "never published", "source")
    assert only(merge([report(blocked(CELL)), report(gone)])).verdict is State.UNAVAILABLE


def broken(error: CellError | HostError, probes: list[ProbeResult] | None = None) -> ReportModel:
    verdict = from_error(
        error,
        subject=SubjectKind.IMAGE,
        digest=image(CELL).digest,
        suite_hash=SUITE,
        host=CPU_HOST,
        at=AT,
        findings=[],
        probes=probes or [],
    )
    return report(report_cell(CELL, verdict, lock=LOCK_27, built=image(CELL), policy=POLICY))


def test_merging_keeps_a_failure_outside_the_probes() -> None:
    cell = only(merge([broken(CellError("labels differ")), run_of(gpu_probes(), GPU_HOST)]))
    assert (cell.verdict, cell.reason) == (State.FAILED, "labels differ")


def test_a_failure_on_another_digest_stays_visible() -> None:
    lock_failure = report_cell(
        CELL,
        from_error(
            CellError("wrong sha256"),
            subject=SubjectKind.LOCK,
            digest=LOCK_27.digest,
            suite_hash=SUITE,
            host=CPU_HOST,
            at=AT,
        ),
        policy=POLICY,
    )
    cell = only(merge([report(lock_failure), run_of(gpu_probes(), GPU_HOST)]))
    assert cell.verdict is State.VERIFIED
    assert cell.other_evidence[0].failures == ["wrong sha256"]


def test_a_run_cut_off_in_the_middle_keeps_its_reason_until_it_is_finished() -> None:
    first = broken(HostError("daemon gone"), cpu_probes()[:1])
    second = broken(HostError("daemon gone"), cpu_probes()[1:2])
    cell = only(merge([first, second]))
    assert (cell.verdict, cell.reason) == (State.BLOCKED, "daemon gone")
    assert {one.name for one in cell.probes} == {"versions", "torchrun"}
    assert only(merge([first, second, GPU_ONLY])).verdict is State.VERIFIED


def test_merged_shards_equal_the_report_of_one_run() -> None:
    whole = make_report(default_cells(), host=GPU_HOST, suite_hash=SUITE, generated_at=AT)
    shards = [report(cell, host=GPU_HOST) for cell in default_cells()]
    random.Random(7).shuffle(shards)
    assert merge(shards) == whole


def test_a_report_merged_with_itself_is_unchanged() -> None:
    whole = every_verdict()
    assert merge([whole]) == merge([whole, whole]) == whole


OUTCOMES = st.sampled_from([Outcome.PASS, Outcome.FAIL, Outcome.SKIP, Outcome.HOST_FAULT])


@st.composite
def runs(draw: st.DrawFn) -> ReportModel:
    host = draw(st.sampled_from([CPU_HOST, GPU_HOST, VENV_HOST]))
    at = draw(st.sampled_from([AT, LATER]))
    kind = draw(st.sampled_from(["judged", "blocked", "unavailable", "cut", "broken", "lock"]))
    probes = [
        probe(name, draw(OUTCOMES), "c")
        for name in draw(st.sets(st.sampled_from([one.name for one in gpu_probes()])))
    ]
    suite = draw(st.sampled_from([SUITE, sha("other suite")]))
    match kind:
        case "blocked":
            cell = blocked(CELL)
        case "unavailable":
            cell = unavailable(CELL, "never", "source", "2.7.1-cu118")
        case "cut":
            return broken(HostError("daemon gone"), probes)
        case "broken":
            return broken(CellError("labels differ"), probes)
        case _:
            made = environment(CELL) if host is VENV_HOST else image(CELL)
            cell = judged(CELL, made, probes, host, lock=LOCK_27, at=at, suite=suite)
    return report(cell, host=host, at=at, suite=suite)


@given(st.lists(runs(), min_size=1, max_size=3))
def test_the_order_of_reports_does_not_matter(reports: list[ReportModel]) -> None:
    first = merge(reports)
    assert all(merge(list(order)) == first for order in itertools.permutations(reports))


@given(st.lists(runs(), min_size=1, max_size=3))
def test_merging_again_changes_nothing(reports: list[ReportModel]) -> None:
    merged = merge(reports)
    assert merge([merged]) == merged
    assert merge([merged, merged]) == merged
    again = merge([merged, *reports])
    assert [one.verdict for one in again.cells] == [one.verdict for one in merged.cells]


@given(st.lists(runs(), min_size=1, max_size=3))
def test_merging_verifies_only_what_one_digest_proves(
    reports: list[ReportModel],
) -> None:
    cell = only(merge(reports))
    if cell.verdict is not State.VERIFIED:
        return
    assert cell.image and cell.evidence
    proven = {
        result.name
        for one in reports
        for source in one.cells
        if source.evidence
        and (source.evidence.digest, source.evidence.suite_hash)
        == (cell.evidence.digest, cell.evidence.suite_hash)
        for result in source.probes
        if result.outcome is Outcome.PASS
    }
    assert {needed.name for needed in POLICY.probes} <= proven


def with_logs(folder: Path, merged: ReportModel, text: str) -> Path:
    write_reports(folder, merged)
    for cell in merged.cells:
        for result in cell.probes:
            (folder / result.log).parent.mkdir(parents=True, exist_ok=True)
            (folder / result.log).write_text(text)
    return folder


def test_logs_are_copied_and_do_not_overwrite_each_other(tmp_path: Path) -> None:
    cpu = with_logs(tmp_path / "cpu", CPU_RUN, "cpu log")
    gpu = with_logs(tmp_path / "gpu", run_of(gpu_probes(), GPU_HOST), "gpu log")
    out = tmp_path / "out"
    assert run(sources=[cpu, gpu], reports=out) == 0
    for result in only(read_report(out)).probes:
        expected = "cpu log" if result.host.engine == CPU_HOST.engine else "gpu log"
        assert (out / result.log).read_text() == expected


def test_a_log_keeps_its_path_if_no_other_log_has_it(tmp_path: Path) -> None:
    cpu = with_logs(tmp_path / "cpu", CPU_RUN, "log")
    (gathered,) = gather_logs([(cpu, CPU_RUN)], tmp_path / "out")
    assert [p.log for p in only(gathered).probes] == [p.log for p in only(CPU_RUN).probes]


def test_a_log_outside_the_folder_is_never_copied(tmp_path: Path) -> None:
    secret = tmp_path / "secret.log"
    secret.write_text("secret")
    cell = only(CPU_RUN)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link.log").symlink_to(secret)
    for log in ("../secret.log", str(secret), "link.log", "missing.log", "a\0b"):
        probes = [cell.probes[0].model_copy(update={"log": log})]
        bad = CPU_RUN.model_copy(update={"cells": [cell.model_copy(update={"probes": probes})]})
        (gathered,) = gather_logs([(tmp_path / "run", bad)], tmp_path / "out")
        assert only(gathered).probes[0].log == ""
    assert not (tmp_path / "out").exists()


def test_the_verb_exits_1_if_a_cell_failed(tmp_path: Path) -> None:
    write_reports(tmp_path / "run", every_verdict())
    assert run(sources=[tmp_path / "run"], reports=tmp_path / "out") == 1


def test_the_verb_refuses_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        run(sources=[tmp_path / "nowhere"], reports=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_verb_prints_which_evidence_does_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    venv = judged(CELL, environment(CELL), gpu_probes(), VENV_HOST, lock=LOCK_27)
    write_reports(tmp_path / "a", report(venv, host=VENV_HOST))
    write_reports(tmp_path / "b", run_of(gpu_probes(), GPU_HOST))
    run(sources=[tmp_path / "a", tmp_path / "b"], reports=tmp_path / "out")
    assert "evidence of venv, no driver, no GPU does not count" in capsys.readouterr().out
