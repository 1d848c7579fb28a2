from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.unit.audit.textaudit import facts_of, findings
from torchproof.audit.facts import TextFile
from torchproof.audit.parsing.dockerfile import parse_dockerfile
from torchproof.audit.parsing.shell import parse_shell
from torchproof.audit.parsing.texts import TextKind, collect, kind_of
from torchproof.audit.parsing.words import expand, split_words
from torchproof.audit.run_texts import audit_texts
from torchproof.errors import InputError

NAMES = ("Dockerfile", "run.sh", "job.yaml", "requirements.txt", "Makefile", "j.sbatch")
PIECES = st.sampled_from(
    [
        *("FROM a:1\n", "RUN ", "COPY . .\n", "ARG A", "ENV A=1 B\n", "pip install torch", "\\\n"),
        *("<<EOF\n", "EOF\n", "$(", ")", "`", "${", "}", "'", '"', "#", "\n", " ", "|", ";", "&&"),
        *("docker run --gpus all ", "-v", "--", "a: ", "- ", "[", "]", "{", "&x ", "*x", "|\n  "),
        *("apiVersion: v1\nkind: Pod\nspec:\n  containers:\n", "  - name: a\n", "\r\n", "\t", "é"),
        *("#SBATCH --gres=gpu:1\n", "srun ", "torchrun --nproc-per-node=", "-r x.txt\n", "\0", "="),
    ]
)


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("Dockerfile", "", TextKind.DOCKERFILE),
        ("docker/Dockerfile.gpu", "", TextKind.DOCKERFILE),
        ("gpu.Dockerfile", "", TextKind.DOCKERFILE),
        ("Containerfile", "", TextKind.DOCKERFILE),
        ("build", "# x\nFROM a:1\n", TextKind.DOCKERFILE),
        ("dockerfile.py", "FROM = 1", TextKind.OTHER),
        ("Dockerfile.j2", "FROM a", TextKind.OTHER),
        ("Dockerfile.dockerignore", "*", TextKind.OTHER),
        ("compose.yaml", "", TextKind.YAML),
        ("pod.json", '{"kind": "Pod"}', TextKind.YAML),
        ("data.json", "{}", TextKind.OTHER),
        ("train.sbatch", "", TextKind.SHELL),
        ("train", "#!/usr/bin/env bash\n", TextKind.SHELL),
        ("job.txt", "#!/bin/sh\n#SBATCH -N 1\n", TextKind.SHELL),
        ("train", "#!/usr/bin/env python\n", TextKind.OTHER),
        ("requirements-dev.txt", "", TextKind.REQUIREMENTS),
        ("requirements.in", "", TextKind.REQUIREMENTS),
        ("notes.txt", "torch", TextKind.OTHER),
        ("README.md", "FROM a", TextKind.OTHER),
    ],
)
def test_a_text_is_known_by_its_name_or_its_start(path: str, text: str, kind: TextKind) -> None:
    assert kind_of(TextFile(path=path, text=text)) is kind


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(NAMES), st.lists(PIECES, max_size=40).map("".join))
def test_any_text_is_audited_without_a_crash(name: str, text: str) -> None:
    for found in findings({name: text}):
        assert found.message
        assert found.fix
        assert found.where.startswith(name)


@given(st.text(max_size=200))
@example("FROM a\n\\")
def test_parsers_take_any_text(text: str) -> None:
    parse_shell(text)
    parse_dockerfile(text)
    split_words(text)
    expand(text, {"A": "$A", "B": "${B:-x}"})


@given(st.lists(st.text("abc$'\"\\ {}", min_size=1, max_size=8), max_size=6))
def test_a_quoted_word_stays_one_word(words: list[str]) -> None:
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
    commands = parse_shell("program " + quoted)
    assert commands[0].words == ("program", *words)


@pytest.mark.parametrize(
    "text",
    [
        "$(" * 20_000,
        "`" * 20_001,
        "'" + "a" * 500_000,
        "RUN " + "a \\\n" * 50_000,
        "ENV A=" + "x" * 500_000,
        "(" * 50_000,
        "{a: " * 3_000,
        "[" * 50_000,
        "${" * 20_000,
    ],
)
def test_hostile_text_ends_in_good_time(text: str) -> None:
    started = time.monotonic()
    findings(dict.fromkeys(("Dockerfile", "run.sh", "job.yaml"), f"FROM a:1\n{text}"))
    assert time.monotonic() - started < 10


def test_the_lines_of_commands_are_those_of_the_file() -> None:
    text = 'a \\\n  b\n\n# c\n"d\ne"; f $(g\nh)\ncat <<X\ni\nX\nj\n'
    assert {command.words[0]: command.line for command in parse_shell(text)} == {
        "a": 1,
        "d\ne": 5,
        "g": 6,
        "h": 7,
        "f": 6,
        "cat": 8,
        "j": 11,
    }


def test_a_folder_is_read_without_its_environments(tmp_path: Path) -> None:
    for name in ("Dockerfile", "k8s/job.yaml", ".venv/x/Dockerfile", ".git/Dockerfile", "a.bin"):
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"FROM a:1\n" if name != "a.bin" else b"\xff\xfe\x00")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = [str(Path(text.path).relative_to(tmp_path)) for text in collect(tmp_path)]
    assert found == ["Dockerfile", "k8s/job.yaml"]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"just words\n"])
def test_a_file_that_no_rule_reads_is_refused(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / "thing"
    place.write_bytes(content)
    with pytest.raises(InputError) as caught:
        audit_texts(place)
    assert str(place) in str(caught.value)
    with pytest.raises(InputError):
        audit_texts(tmp_path)


def test_findings_of_a_file_name_it_as_the_user_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("Dockerfile").write_text("FROM python\n")
    assert [found.where for found in audit_texts(Path("Dockerfile"))] == ["Dockerfile:1"]


def test_facts_of_texts_alone_have_no_other_finding() -> None:
    assert facts_of({"Dockerfile": "FROM scratch\n"}).files == {}
    assert findings({"Dockerfile": "FROM scratch\n"}) == []
