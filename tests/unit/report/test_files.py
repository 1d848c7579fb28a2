from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.golden_files import assert_golden
from tests.unit.report.report_samples import (
    AT,
    CPU_HOST,
    LOCK_27,
    SUITE,
    every_verdict,
    image,
    judged,
    probe,
)
from torchproof.errors import HostError, InputError
from torchproof.model.cell import Cell
from torchproof.report import make_report, read_report, write_reports
from torchproof.report.files import report_json

FILES = {"index.html", "report.json", "report.md", "junit.xml", "metrics.prom"}


def test_all_files_are_written_and_no_others_remain(tmp_path: Path) -> None:
    write_reports(tmp_path / "reports", every_verdict())
    assert {path.name for path in (tmp_path / "reports").iterdir()} == FILES


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_matches_the_golden_file(tmp_path: Path, name: str) -> None:
    write_reports(tmp_path, every_verdict())
    assert_golden(f"report/{name}", (tmp_path / name).read_text(encoding="utf-8"))


def test_a_written_report_is_read_back_from_its_folder_and_from_its_file(tmp_path: Path) -> None:
    write_reports(tmp_path, every_verdict())
    assert read_report(tmp_path) == read_report(tmp_path / "report.json") == every_verdict()


def test_other_users_can_read_the_files(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_reports(tmp_path, every_verdict())
    assert (tmp_path / "index.html").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_that_cannot_be_created_is_a_fault_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file is in the way")
    with pytest.raises(HostError, match="cannot be written"):
        write_reports(tmp_path / "reports", every_verdict())


WHOLE = report_json(every_verdict())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (WHOLE[: len(WHOLE) // 2], "not a complete JSON"),
        ("", "not a complete JSON"),
        ("[1]", "not a report"),
        ("null", "not a report"),
        ("{}", "no `schema`"),
        (WHOLE.replace("torchproof/report/1", "torchproof/report/2"), "has schema"),
        (WHOLE.replace("torchproof/report/1", "x"), "'x'"),
        (json.dumps({"schema": ["torchproof/report/1"]}), "has schema"),
        (json.dumps({"schema": "torchproof/report/1"}), "generated_at"),
        (WHOLE.replace('"verified"', '"green"'), "cells.*verdict"),
        (WHOLE.replace('"generated_at"', '"made"', 1), "generated_at|made"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_a_bad_report_is_refused_with_file_and_reason(
    tmp_path: Path, content: str, said: str
) -> None:
    (tmp_path / "report.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=said) as caught:
        read_report(tmp_path)
    assert str(tmp_path / "report.json") in caught.value.where


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(b'{"schema": "\xff\xfe"}')
    with pytest.raises(InputError, match="UTF-8"):
        read_report(tmp_path)


def test_probe_output_that_json_cannot_express_is_still_written(
    tmp_path: Path,
) -> None:
    deep: object = 1
    for _ in range(400):
        deep = [deep]
    odd = probe(
        "versions", message="lone \ud800 surrogate", metrics={"nan": float("nan"), "d": deep}
    )
    cell = Cell(torch="2.7.1", cuda="cu126")
    report = make_report(
        [judged(cell, image(cell), [odd], CPU_HOST, lock=LOCK_27)],
        host=CPU_HOST,
        suite_hash=SUITE,
        generated_at=AT,
    )
    write_reports(tmp_path, report)
    assert read_report(tmp_path) == report
    assert report.cells[0].probes[0].metrics["nan"] is None


def test_a_missing_folder_and_an_empty_one_give_different_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        read_report(tmp_path / "nowhere")
    with pytest.raises(InputError, match="there is no report here"):
        read_report(tmp_path)
