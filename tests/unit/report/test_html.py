from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from tests.unit.report.report_samples import (
    AT,
    CPU_HOST,
    SUITE,
    VENV_HOST,
    default_cells,
    every_verdict,
)
from torchproof.report import make_report
from torchproof.report.html import render_html
from torchproof.report.models import CellModel, ReportModel

ATTACK = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> {{ 7*7 }} & javascript:alert(3)"


class Page(HTMLParser):
    """The tags and attributes of a page, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def attributes(self, name: str) -> list[str]:
        return [value for _, attrs in self.tags if (value := attrs.get(name)) is not None]


def hostile(report: ReportModel) -> ReportModel:
    """The report with every text replaced by an attack, except the words that the schema fixes."""

    fixed = {
        "schema", "verdict", "outcome", "subject", "generated_at", "at", "torch", "cuda", "python",
        "digest", "answer",
    }  # fmt: skip

    def poison(value: object, key: str = "") -> object:
        match value:
            case dict():
                return {name: poison(item, name) for name, item in value.items()}
            case list():
                return [poison(item, key) for item in value]
            case str() if key not in fixed and value:
                return ATTACK
            case _:
                return value

    return ReportModel.model_validate(poison(report.model_dump(mode="json", by_alias=True)))


def test_no_text_of_a_report_becomes_markup() -> None:
    page = Page(render_html(hostile(every_verdict())))
    own = Page(render_html(every_verdict()))
    kinds = {tag for tag, _ in own.tags}
    assert {tag for tag, _ in page.tags} <= kinds
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    names = {name for _, attrs in page.tags for name in attrs}
    assert not any(name.startswith("on") for name in names)
    assert "".join(page.words).count("{{ 7*7 }}") > 20


@pytest.mark.parametrize(
    "source",
    [
        "javascript:alert(1)",
        "JavaScript://x/%0aalert(1)",
        "data:text/html,<script>",
        "//evil.example",
        "http:alert",
        "http://[bad",
    ],
)
def test_only_web_addresses_become_links(source: str) -> None:
    cell = default_cells()[1].model_copy(update={"source": source})
    page = Page(render_html(make_report([cell], host=CPU_HOST, suite_hash=SUITE, generated_at=AT)))
    for link in page.attributes("href"):
        assert link.startswith(("#", "./", "report.", "junit.xml", "metrics.prom", "data:,"))


@pytest.mark.parametrize("log", ["/etc/passwd", "../../secret.log", "a/../../b"])
def test_a_log_outside_the_reports_folder_is_not_linked(log: str) -> None:
    cell = default_cells()[2]
    probes = [probe.model_copy(update={"log": log}) for probe in cell.probes]
    text = render_html(
        make_report(
            [cell.model_copy(update={"probes": probes})],
            host=CPU_HOST,
            suite_hash=SUITE,
            generated_at=AT,
        )
    )
    assert "full log" not in text


def test_a_log_named_like_a_scheme_stays_a_file() -> None:
    cell = default_cells()[2]
    probes = [probe.model_copy(update={"log": "javascript:alert(1)"}) for probe in cell.probes]
    report = make_report(
        [cell.model_copy(update={"probes": probes})],
        host=CPU_HOST,
        suite_hash=SUITE,
        generated_at=AT,
    )
    assert "./javascript%3Aalert%281%29" in Page(render_html(report)).attributes("href")


def test_control_and_bidi_characters_do_not_reach_the_page() -> None:
    cell = default_cells()[0].model_copy(update={"reason": "a\x1b[31m\x00b\u202etxt"})
    text = render_html(make_report([cell], host=CPU_HOST, suite_hash=SUITE, generated_at=AT))
    assert not re.search("[\x00\x1b\u202e]", text)


def test_the_page_needs_no_network() -> None:
    text = render_html(every_verdict())
    page = Page(text)
    assert not page.attributes("src")
    assert not any(tag in ("link", "iframe", "object") for tag, a in page.tags if "data:" not in
                   (a.get("href") or ""))  # fmt: skip
    assert "url(" not in text and "@import" not in text
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv"))
    assert policy and policy.startswith("default-src 'none'")


def test_every_card_leads_to_its_evidence() -> None:
    report = every_verdict()
    page = Page(render_html(report))
    cards = [a["href"] for tag, a in page.tags if "card" in (a.get("class") or "").split()]
    ids = set(page.attributes("id"))
    assert len(cards) == len(report.cells)
    assert all(card and card.removeprefix("#") in ids for card in cards)


def test_every_verdict_is_a_word_and_not_only_a_colour() -> None:
    report = every_verdict()
    text = "".join(Page(render_html(report)).words)
    for cell in report.cells:
        assert cell.reason in text
        assert cell.verdict.value in text


def test_nearest_cells_of_the_report_are_links() -> None:
    hrefs = Page(render_html(every_verdict())).attributes("href")
    assert hrefs.count("#cell-2.7.1-cu126-py311") >= 2


def test_the_page_says_that_environments_are_not_images() -> None:
    report = make_report(
        default_cells(VENV_HOST), host=VENV_HOST, suite_hash=SUITE, generated_at=AT
    )
    assert "No images were built" in render_html(report)
    assert "No images were built" not in render_html(every_verdict())


def test_equal_reports_give_equal_pages() -> None:
    assert render_html(every_verdict()) == render_html(every_verdict())


def test_a_report_without_cells_is_still_a_page() -> None:
    empty: list[CellModel] = []
    text = render_html(make_report(empty, host=CPU_HOST, suite_hash=SUITE, generated_at=AT))
    assert "0 of 0 cells verified" in text


def test_torch_2_10_comes_after_2_9() -> None:
    cell = default_cells()[8]
    newer = cell.model_copy(update={"id": "2.10.0-cu128-py311", "torch": "2.10.0"})
    text = render_html(make_report([newer, cell], host=CPU_HOST, suite_hash=SUITE, generated_at=AT))
    assert text.index("</small>2.9<") < text.index("</small>2.10<")
