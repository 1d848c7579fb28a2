"""junit.xml: a test suite per cell; a test case per probe, and per audit finding that fails it."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from torchproof.model.results import Level, Outcome, State
from torchproof.report import words
from torchproof.report.from_report import policy_of
from torchproof.report.models import CellModel, FindingModel, ProbeModel, ReportModel


def render_junit(report: ReportModel) -> str:
    """Return the XML. Every cell has a test case `verdict`, beside those of its probes."""
    root = Xml.Element("testsuites", name="torchproof")
    for cell in report.cells:
        _suite(root, cell, report.generated_at)
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    Xml.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(root, "unicode") + "\n"


def _suite(root: Xml.Element, cell: CellModel, generated_at: str) -> None:
    suite = Xml.SubElement(root, "testsuite", name=words.one_line(cell.id))
    properties = Xml.SubElement(suite, "properties")
    for name, text in (
        ("verdict", cell.verdict.value),
        ("reason", cell.reason),
        ("digest", cell.evidence.digest if cell.evidence else ""),
        ("suite_hash", cell.evidence.suite_hash if cell.evidence else ""),
    ):
        Xml.SubElement(properties, "property", name=name, value=words.one_line(text))
    _verdict(suite, cell)
    policy = policy_of(cell.policy)
    for finding in cell.audit:
        if finding.outcome is Level.ERROR and policy.requires_rule(finding.rule):
            _finding(suite, cell, finding)
    for probe in cell.probes:
        _probe(suite, cell, probe)
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("time", f"{sum(probe.seconds for probe in cell.probes):.3f}")
    suite.set("timestamp", cell.evidence.at if cell.evidence else generated_at)


def _verdict(suite: Xml.Element, cell: CellModel) -> None:
    """Add the verdict as a case, so that no cell is silently green because it has no case."""
    case = _case(suite, cell, "verdict", 0.0)
    match cell.verdict:
        case State.VERIFIED:
            pass
        case State.FAILED:
            _say(case, "failure", "failed", cell.reason, cell.fix)
        case State.BLOCKED:
            _say(case, "error", "blocked", cell.reason, cell.fix)
        case _:
            _say(case, "skipped", cell.verdict.value, cell.reason, cell.source)


def _finding(suite: Xml.Element, cell: CellModel, finding: FindingModel) -> None:
    case = _case(suite, cell, f"audit:{finding.rule}", 0.0)
    _say(case, "failure", finding.rule, finding.message, f"{finding.where}\n{finding.fix}".strip())


def _probe(suite: Xml.Element, cell: CellModel, probe: ProbeModel) -> None:
    several = sum(other.name == probe.name for other in cell.probes) > 1
    name = f"{probe.name} [{words.machine(probe.host)}]" if several else probe.name
    case = _case(suite, cell, name, probe.seconds)
    match probe.outcome:
        case Outcome.PASS:
            pass
        case Outcome.SKIP:
            _say(case, "skipped", probe.code, probe.message, probe.fix)
        case Outcome.HOST_FAULT:
            _say(case, "error", probe.code, probe.message, probe.fix)
        case Outcome.FAIL | Outcome.TIMEOUT:
            _say(case, "failure", probe.code, probe.message, probe.fix)
    Xml.SubElement(case, "system-out").text = words.clean(words.machine(probe.host))


def _case(suite: Xml.Element, cell: CellModel, name: str, seconds: float) -> Xml.Element:
    return Xml.SubElement(
        suite,
        "testcase",
        classname=words.one_line(cell.id),
        name=words.one_line(name),
        time=f"{seconds:.3f}",
    )


def _say(case: Xml.Element, tag: str, kind: str, message: str, more: str) -> None:
    element = Xml.SubElement(case, tag, message=words.one_line(message), type=words.one_line(kind))
    if more:
        element.text = words.clean(more)
