"""Bandwidth is judged by what the user recorded for the same GPU, count and transport."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from torchproof.errors import InputError
from torchproof.model.results import Gpu, Host, Outcome, ProbeResult
from torchproof.probing.baseline import Baseline, judge, read_baseline, record


def measured(
    speed: float, *, gpu: str = "NVIDIA H200", ranks: int = 2, transport: str = "NVLink"
) -> ProbeResult:
    """Return a passed all-reduce between GPUs."""
    return ProbeResult(
        name="allreduce_bandwidth",
        outcome=Outcome.PASS,
        code="ok",
        seconds=1.0,
        message="sums are right",
        metrics={
            "busbw_gbps": speed,
            "ranks": ranks,
            "backend": "nccl",
            "transport": transport,
            "nccl": "2.26.2",
        },
        host=Host(engine="host", gpus=(Gpu(model=gpu, arch="sm_90"),) * ranks),
    )


@pytest.fixture
def recorded(tmp_path: Path) -> Baseline:
    """A baseline of 300 GB/s, written and read back."""
    path = tmp_path / "baseline.yaml"
    assert record([measured(300.0)], path, Baseline()) == 1
    return read_baseline(path, 0.1)


def test_a_recorded_bandwidth_is_read_back(recorded: Baseline) -> None:
    (entry,) = recorded.entries
    assert (entry.gpu, entry.count, entry.transport) == ("NVIDIA H200", 2, "NVLink")
    assert (entry.busbw_gbps, entry.nccl) == (300.0, "2.26.2")


@pytest.mark.parametrize("speed", [270.0, 300.0, 400.0])
def test_within_the_tolerance_passes(recorded: Baseline, speed: float) -> None:
    result = judge(measured(speed), recorded)
    assert result.outcome is Outcome.PASS
    assert "of the recorded 300 GB/s" in result.message


def test_below_the_tolerance_fails_with_both_figures(recorded: Baseline) -> None:
    result = judge(measured(150.0), recorded)
    assert (result.outcome, result.code) == (Outcome.FAIL, "slow")
    assert "150 GB/s is 50% of the recorded 300 GB/s" in result.message
    assert "nvidia-smi topo" in result.fix


@pytest.mark.parametrize(
    "other",
    [
        measured(1.0, gpu="NVIDIA A100"),
        measured(1.0, ranks=4),
        measured(1.0, transport="SHM"),
    ],
    ids=["gpu", "count", "transport"],
)
def test_another_machine_is_reported_and_not_judged(recorded: Baseline, other: ProbeResult) -> None:
    result = judge(other, recorded)
    assert result.outcome is Outcome.PASS
    assert "not judged: no baseline for" in result.message


def test_a_failed_probe_is_neither_judged_nor_recorded(recorded: Baseline, tmp_path: Path) -> None:
    failed = replace(measured(1.0), outcome=Outcome.FAIL)
    assert judge(failed, recorded) == failed
    assert record([failed], tmp_path / "none.yaml", Baseline()) == 0


def test_recording_replaces_the_same_key_and_keeps_the_others(
    recorded: Baseline, tmp_path: Path
) -> None:
    path = tmp_path / "baseline.yaml"
    assert record([measured(320.0), measured(20.0, transport="SHM")], path, recorded) == 2
    speeds = {entry.transport: entry.busbw_gbps for entry in read_baseline(path, 0.1).entries}
    assert speeds == {"NVLink": 320.0, "SHM": 20.0}


def test_no_file_is_an_empty_baseline(tmp_path: Path) -> None:
    assert read_baseline(tmp_path / "none.yaml", 0.2) == Baseline(tolerance=0.2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("baselines: [{probe: a", "no baseline file"),
        ("other: 1", "no baseline file"),
        ("[1, 2]", "no baseline file"),
        (
            "baselines: [{probe: a, gpu: b, count: 2, transport: c, busbw_gbps: -1}]",
            "a baseline's busbw_gbps",
        ),
    ],
)
def test_a_broken_file_is_told_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "baseline.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=words) as caught:
        read_baseline(path, 0.1)
    assert caught.value.where == str(path)
