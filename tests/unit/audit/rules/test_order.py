from __future__ import annotations

import pytest

from tests.unit.audit.textaudit import findings
from torchproof.model.results import Level

BASE = f"FROM python:3.11@sha256:{'a' * 64}\n"
HEAVY = "RUN pip install -r requirements.txt\n"


@pytest.mark.parametrize(
    "step",
    [
        "ARG BUILD_DATE\n",
        "ARG GIT_SHA=unknown\n",
        "ARG VCS_REF\nLABEL ref=$VCS_REF\n",
        "ARG CACHEBUST=1\n",
        "ENV BUILD_NUMBER=12\n",
        "ADD https://example.org/file.tgz /tmp/\n",
        "COPY . .\n",
        "COPY . /app\n",
        "COPY --chown=1000 ./ /app/\n",
        "COPY .git /app/.git\n",
    ],
)
def test_what_differs_in_every_build_is_found_above_a_heavy_install(step: str) -> None:
    (found,) = findings(BASE + step + HEAVY, "order.volatile")
    assert found.level is Level.WARNING
    assert found.where == "Dockerfile:2"
    assert f"line {2 + step.count(chr(10))}" in found.message


@pytest.mark.parametrize(
    "text",
    [
        BASE + HEAVY + "ARG BUILD_DATE\nCOPY . .\n",
        "ARG BUILD_DATE\n" + BASE + HEAVY,
        BASE + "ARG TORCH_SHA256=aa\nARG TORCH_VERSION=2\nARG SOURCE_DATE_EPOCH=0\n" + HEAVY,
        BASE + "COPY requirements.txt .\n" + HEAVY,
        BASE + "COPY . .\nRUN pip install --no-deps .\n",
        BASE + f"ADD --checksum=sha256:{'a' * 64} https://example.org/f /f\n" + HEAVY,
        BASE + "ARG GIT_SHA\nRUN echo $GIT_SHA > /revision\n",
        "FROM a AS x\nCOPY . .\nFROM b\n" + HEAVY,
    ],
)
def test_stable_steps_above_an_install_have_no_finding(text: str) -> None:
    assert findings(text, "order.volatile") == []


@pytest.mark.parametrize(
    "text",
    [
        "WORKDIR /app\nCOPY pyproject.toml uv.lock ./\nRUN sed -i s/a/b/ uv.lock\nCOPY . .\n",
        "WORKDIR /app\nRUN sed -i.bak 's/a/b/' uv.lock pyproject.toml\nCOPY ./ /app/\n",
        "COPY uv.lock /app/uv.lock\nRUN cd /app && uv lock --upgrade\nCOPY uv.lock /app/\n",
        "WORKDIR /app\nRUN uv add torch==2.9.1\nCOPY . /app\n",
        "WORKDIR /app\nRUN grep -v torch requirements.txt > requirements.txt\nADD . .\n",
        "WORKDIR /app\nRUN echo x | tee -a pyproject.toml\nCOPY . .\n",
        "WORKDIR /app\nCOPY conf/x.yaml x.yaml\nRUN yq -i .a=1 x.yaml\nCOPY . .\n",
        "WORKDIR /app\nRUN cp /tmp/fixed.lock uv.lock\nCOPY . .\n",
        "WORKDIR /app\nCOPY --link src/uv.lock .\nRUN uv lock\nCOPY --link . ./\n",
    ],
)
def test_a_copy_over_a_changed_file_is_an_error(text: str) -> None:
    found = findings(BASE + text, "order.copy-over-change")
    assert found
    assert {item.level for item in found} == {Level.ERROR}
    assert found[0].where == f"Dockerfile:{1 + text.count(chr(10))}"


@pytest.mark.parametrize(
    "text",
    [
        "WORKDIR /app\nCOPY . .\nRUN sed -i s/a/b/ uv.lock\n",
        "WORKDIR /app\nRUN sed -i s/a/b/ uv.lock\nCOPY . .\nRUN sed -i s/a/b/ uv.lock\n",
        "WORKDIR /app\nRUN sed -i s/a/b/ /etc/apt/sources.list\nCOPY . .\n",
        "WORKDIR /app\nRUN sed -i s/a/b/ uv.lock\nCOPY src /app/src\n",
        "WORKDIR /app\nRUN echo hi > note.txt\nCOPY . .\n",
        "WORKDIR /app\nRUN sed -n p uv.lock > /dev/null\nCOPY . .\n",
        "WORKDIR /app\nRUN sed -i s/a/b/ uv.lock\nWORKDIR /other\nCOPY . .\n",
    ],
)
def test_a_copy_that_undoes_nothing_has_no_finding(text: str) -> None:
    assert findings(BASE + text, "order.copy-over-change") == []


def test_dockerignore_keeps_the_changed_file() -> None:
    text = BASE + "WORKDIR /app\nRUN uv lock\nCOPY . .\n"
    texts = {"Dockerfile": text, ".dockerignore": "uv.lock\n"}
    assert findings(texts, "order.copy-over-change") == []


def test_a_lock_that_is_never_synced_is_a_warning() -> None:
    text = BASE + "WORKDIR /app\nENV UV_NO_SYNC=1\nRUN uv lock\nCOPY . .\n"
    (found,) = findings(text, "order.copy-over-change")
    assert found.level is Level.WARNING
