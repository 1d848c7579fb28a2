from __future__ import annotations

from xml.etree import ElementTree as Xml

from prometheus_client.parser import text_string_to_metric_families

from tests.unit.golden_files import assert_golden
from tests.unit.report.report_samples import (
    AT,
    CPU_HOST,
    GPU_HOST,
    LOCK_29,
    SUITE,
    VENV_HOST,
    cpu_probes,
    default_cells,
    every_verdict,
    gpu_probes,
    image,
    judged,
    probe,
)
from torchproof.model.cell import Cell
from torchproof.model.results import Host, Outcome, ProbeResult
from torchproof.report import make_report, merge, summary
from torchproof.report.junit import render_junit
from torchproof.report.models import ReportModel
from torchproof.report.prometheus import render_prometheus
from torchproof.report.text import render_markdown

CELL = Cell(torch="2.9.1", cuda="cu128")
ATTACK = "a | b\n# title <script>alert(1)</script> `x` [l](javascript:1) ]]> & \x1b[31m\x00 ![i](u)"


def report(*probes: ProbeResult, host: Host = GPU_HOST) -> ReportModel:
    cell = judged(CELL, image(CELL), probes, host, lock=LOCK_29)
    return make_report([cell], host=host, suite_hash=SUITE, generated_at=AT)


def case(xml: str, name: str) -> Xml.Element:
    (found,) = Xml.fromstring(xml).findall(f".//testcase[@name='{name}']")
    return found


def test_the_summary_matches_the_golden_file() -> None:
    assert_golden("report/summary.txt", summary(every_verdict()) + "\n")


def test_the_summary_of_environments_says_that_no_images_were_built() -> None:
    venv = make_report(default_cells(VENV_HOST), host=VENV_HOST, suite_hash=SUITE, generated_at=AT)
    assert summary(venv).endswith(
        "10 cells: 2 unproven, 4 blocked, 4 unavailable\n"
        "no images were built: the probes ran in virtual environments"
    )


def test_the_summary_keeps_to_the_width_of_the_terminal() -> None:
    lines = summary(every_verdict(), width=100).splitlines()
    assert max(len(line) for line in lines) <= 100


def test_a_summary_without_cells_works() -> None:
    empty = make_report([], host=CPU_HOST, suite_hash=SUITE, generated_at=AT)
    assert summary(empty).endswith("0 cells: none")
    assert "0 cells" in render_markdown(empty)
    Xml.fromstring(render_junit(empty))


def test_escape_codes_of_a_probe_do_not_reach_the_terminal() -> None:
    text = summary(report(probe("versions", Outcome.FAIL, "x", message="\x1b[2J\x07gone")))
    assert "\x1b" not in text and "\x07" not in text


def test_text_of_a_probe_stays_in_its_markdown_table() -> None:
    text = render_markdown(report(probe("versions", Outcome.FAIL, "x", message=ATTACK)))
    assert "<script" not in text and "![i]" not in text and "[l](" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("| versions")]
    assert row.replace("\\|", "").count("|") == 6


def test_any_text_gives_xml_that_parses_back() -> None:
    xml = render_junit(report(probe("versions", Outcome.FAIL, "x", message=ATTACK, fix=ATTACK)))
    failure = case(xml, "versions").find("failure")
    assert failure is not None
    assert "<script>alert(1)</script>" in failure.get("message", "")


def test_a_skip_is_skipped_in_junit_and_never_a_plain_pass() -> None:
    xml = render_junit(report(*cpu_probes(), host=CPU_HOST))
    skipped = case(xml, "ddp_step").find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "needs 2 GPUs, this host has none"
    assert case(xml, "verdict").find("skipped") is not None


def test_a_fault_of_the_host_is_an_error_in_junit_and_a_timeout_a_failure() -> None:
    xml = render_junit(
        report(
            probe("nccl_init", Outcome.HOST_FAULT, "nvml_lost"),
            probe("torchrun", Outcome.TIMEOUT, "timeout"),
        )
    )
    assert case(xml, "nccl_init").find("error") is not None
    assert case(xml, "torchrun").find("failure") is not None


def test_junit_counts_add_up() -> None:
    root = Xml.fromstring(render_junit(every_verdict()))
    for element in (root, *root.findall("testsuite")):
        for key, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
            assert int(element.get(key, "-1")) == len(list(element.iter(tag)))
        assert int(element.get("skipped", "-1")) == len(list(element.iter("skipped")))
    assert len(root.findall("testsuite")) == len(every_verdict().cells)


def test_one_probe_on_two_hosts_gives_two_cases_with_different_names() -> None:
    merged = merge([report(*gpu_probes()), report(*cpu_probes(), host=CPU_HOST)])
    cases = Xml.fromstring(render_junit(merged)).findall(".//testcase")
    names = [one.get("name") for one in cases]
    assert len(names) == len(set(names))
    assert "versions [docker 28.3.3, driver 570.172.08, 2 × NVIDIA H200]" in names


def test_metrics_parse_and_have_one_verdict_per_cell() -> None:
    families = list(text_string_to_metric_families(render_prometheus(every_verdict())))
    verdicts = next(one for one in families if one.name == "torchproof_verdict")
    by_cell: dict[str, float] = {}
    for sample in verdicts.samples:
        cell = sample.labels["cell"]
        by_cell[cell] = by_cell.get(cell, 0) + sample.value
    assert set(by_cell.values()) == {1.0}
    assert len(by_cell) == len(every_verdict().cells)


def test_metrics_with_odd_text_still_parse() -> None:
    text = render_prometheus(report(probe('a"b\\c\nd\x00', Outcome.FAIL)))
    families = list(text_string_to_metric_families(text))
    seconds = next(one for one in families if one.name == "torchproof_probe_seconds")
    assert seconds.samples[0].labels["probe"] == 'a"b\\c d\ufffd'
