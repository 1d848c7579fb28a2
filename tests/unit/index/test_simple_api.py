from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchproof.errors import IndexUnreachableError
from torchproof.index.simple_api import parse_page

BASE = "https://index.example/whl/cu128/torch/"
NAME = "torch-2.9.1+cu128-cp311-cp311-manylinux_2_28_x86_64.whl"
HREF = NAME.replace("+", "%2B")
SHA = "ab" * 32


def _html(body: str) -> str:
    return f"<!DOCTYPE html><html><body>{body}</body></html>"


def test_a_name_is_decoded_and_the_address_keeps_its_escape() -> None:
    page = _html(f'<a href="https://files.example/whl/cu128/{HREF}#sha256={SHA}">{NAME}</a>')
    (wheel,) = parse_page(page, base=BASE, kind="text/html")
    assert wheel.filename == NAME
    assert wheel.url == f"https://files.example/whl/cu128/{HREF}"
    assert wheel.sha256 == SHA


def test_an_address_can_be_relative_to_the_page_or_the_host() -> None:
    page = _html(f'<a href="../../{HREF}">x</a><a href="/whl/cu118/{HREF}">x</a>')
    urls = [wheel.url for wheel in parse_page(page, base=BASE, kind="text/html")]
    assert urls == [
        f"https://index.example/whl/{HREF}",
        f"https://index.example/whl/cu118/{HREF}",
    ]


def test_a_base_element_counts() -> None:
    page = f'<html><head><base href="https://other.example/x/"></head><a href="{HREF}">t</a></html>'
    (wheel,) = parse_page(page, base=BASE, kind="text/html")
    assert wheel.url == f"https://other.example/x/{HREF}"


def test_a_hash_can_be_absent() -> None:
    (wheel,) = parse_page(_html(f'<a href="{HREF}">x</a>'), base=BASE, kind="text/html")
    assert wheel.sha256 is None


def test_source_archives_are_left_out_and_yanked_files_marked() -> None:
    page = _html(
        f'<a href="torch-1.0.tar.gz">s</a><a href="{HREF}" data-yanked>y</a>'
        f'<a href="a-1-py3-none-any.whl">a</a>'
    )
    found = parse_page(page, base=BASE, kind="text/html")
    assert {wheel.filename: wheel.yanked for wheel in found} == {
        NAME: True,
        "a-1-py3-none-any.whl": False,
    }


def test_json_tells_hash_and_size() -> None:
    page = {"files": [{"url": f"../{HREF}", "hashes": {"sha256": SHA}, "size": 5, "yanked": False}]}
    kind = "application/vnd.pypi.simple.v1+json"
    (wheel,) = parse_page(json.dumps(page), base=BASE, kind=kind)
    assert (wheel.sha256, wheel.size, wheel.filename) == (SHA, 5, NAME)


def test_json_marks_yanked_files() -> None:
    page = {"files": [{"url": HREF, "hashes": {}, "yanked": "broken"}]}
    (wheel,) = parse_page(json.dumps(page), base=BASE, kind="application/json")
    assert wheel.yanked


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("<html>Please log in</html>", "text/html"),
        ("", "text/html"),
        ("{}", "application/json"),
        ("[]", "application/json"),
        ('{"files": [5]}', "application/json"),
        ("<html>", "application/json"),
    ],
)
def test_what_is_no_page_counts_as_no_answer(text: str, kind: str) -> None:
    with pytest.raises(IndexUnreachableError, match="not answer with a page of an index"):
        parse_page(text, base=BASE, kind=kind)


@settings(deadline=None)
@given(st.text(), st.sampled_from(["text/html", "application/json", ""]))
def test_any_answer_is_read_or_counts_as_none(text: str, kind: str) -> None:
    try:
        parse_page(text, base=BASE, kind=kind)
    except IndexUnreachableError as error:
        assert error.message
