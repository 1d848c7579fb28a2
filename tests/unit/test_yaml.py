from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from torchproof._yaml import parse_yaml, read_yaml
from torchproof.errors import InputError


def _read(tmp_path: Path, text: str) -> object:
    file = tmp_path / "m.yaml"
    file.write_text(text, encoding="utf-8")
    return read_yaml(file).data


def test_numbers_stay_text(tmp_path: Path) -> None:
    assert _read(tmp_path, "torch: 2.10\ncount: 8\n") == {"torch": "2.10", "count": "8"}


def test_true_false_and_null_are_read_unless_quoted(tmp_path: Path) -> None:
    text = "a: true\nb: false\nc: null\nd:\ne: 'true'\n"
    assert _read(tmp_path, text) == {"a": True, "b": False, "c": None, "d": None, "e": "true"}


def test_every_value_knows_its_line(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("a:\n  - x\n  - {b: 1,\n     c: 2}\n", encoding="utf-8")
    document = read_yaml(file)
    assert document.where(("a", 0)) == f"{file}:2"
    assert document.where(("a", 1, "c")) == f"{file}:4"
    assert document.where(("a", 1, "not there")) == f"{file}:3"


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "twice"),
        ("a:\n  b: 1\n  b: 2\n", 3, "twice"),
        ("a: [1\nb: {", 2, "not YAML"),
        ("a: &a [*a]\n", 1, "aliases"),
        ("? [x, y]\n: 1\n", 1, "plain text"),
        ("a: *nowhere\n", 1, "alias"),
        ("a: 1\n---\nb: 2\n", 2, "document"),
    ],
)
def test_faults_name_their_line(tmp_path: Path, text: str, line: int, word: str) -> None:
    with pytest.raises(InputError) as caught:
        _read(tmp_path, text)
    assert caught.value.where.endswith(f":{line}")
    assert word in str(caught.value)


def test_aliases_that_grow_without_end_are_refused(tmp_path: Path) -> None:
    lines = [
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 12)
    ]
    lines.insert(0, "a0: &a0 [x]")
    with pytest.raises(InputError, match="grow"):
        _read(tmp_path, "\n".join(lines))


def test_content_nested_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too deep"):
        _read(tmp_path, "a: " + "[" * 5000 + "]" * 5000)


def test_a_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    assert _read(tmp_path, "\ufefftorch: 2.9\r\ncuda: cu128\r\n") == {
        "torch": "2.9",
        "cuda": "cu128",
    }


def test_a_tag_makes_no_object(tmp_path: Path) -> None:
    assert _read(tmp_path, "a: !!python/object/apply:os.system [echo]\n") == {"a": ["echo"]}


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_yaml(file)


_TEXT = st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=8)
_VALUES = st.recursive(
    _TEXT, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4)
)


@settings(deadline=None)
@given(_VALUES)
def test_any_quoted_yaml_comes_back_as_written(value: object) -> None:
    text = yaml.safe_dump(value, default_style="'", allow_unicode=True)
    assert parse_yaml(text, Path("m.yaml")).data == value


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        parse_yaml(text, Path("m.yaml"))
    except InputError as error:
        assert error.where.startswith("m.yaml")
