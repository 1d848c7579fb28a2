from __future__ import annotations

import pytest

from tests.unit.audit.textaudit import findings
from torchproof.model.results import Level

ACTION = """\
jobs:
  build:
    strategy: {{matrix: {{platform: [linux/amd64, linux/arm64]}}}}
    steps:
      - uses: docker/build-push-action@v6
        with:
          push: {push}
          tags: {tags}
          {outputs}
"""


@pytest.mark.parametrize(
    "text",
    [
        "build:\n  script:\n    - docker build -t r.io/a:1 .\n    - docker pull r.io/a:1\n",
        "jobs:\n  a:\n    steps:\n      - run: docker build --tag=r.io/a:1 .\n"
        "  b:\n    steps:\n      - run: |\n          docker pull -q r.io/a:1\n",
        "jobs:\n  a:\n    steps:\n      - uses: docker/build-push-action@v6\n"
        "        with: {push: false, tags: 'r.io/a:1'}\n      - run: docker pull r.io/a:1\n",
        "env: {IMAGE: 'r.io/a:1'}\njobs:\n  a:\n    steps:\n"
        "      - run: docker build -t $IMAGE . && docker pull ${IMAGE}\n",
    ],
)
def test_a_pipeline_that_tests_the_published_image_is_an_error(text: str) -> None:
    (found,) = findings({"ci.yml": text}, "ci.tests-another-image")
    assert found.level is Level.ERROR
    assert "published earlier" in found.message
    assert "digest" in found.fix


@pytest.mark.parametrize(
    "text",
    [
        "b:\n  script:\n    - docker build -t r.io/a:1 .\n    - docker push r.io/a:1\n"
        "    - docker pull r.io/a:1\n",
        "b:\n  script:\n    - docker buildx build --push -t r.io/a:1 .\n"
        "    - docker pull r.io/a:1\n",
        "b:\n  script:\n    - docker build -t r.io/a:1 .\n    - docker run r.io/a:1 true\n",
        "b:\n  script:\n    - docker pull r.io/base:1\n    - docker build -t r.io/a:1 .\n",
    ],
)
def test_a_pipeline_that_tests_its_own_image_has_no_finding(text: str) -> None:
    assert findings({"ci.yml": text}, "ci.tests-another-image") == []


@pytest.mark.parametrize(
    ("push", "tags", "outputs", "count"),
    [
        ("true", "r.io/a:0.6", "", 1),
        ("true", "'r.io/a:0.6,r.io/a:latest'", "", 1),
        ("true", "'r.io/a:0.6-${{ matrix.arch }}'", "", 0),
        ("true", "r.io/a", "outputs: type=image,push-by-digest=true", 0),
        ("false", "r.io/a:0.6", "", 0),
    ],
)
def test_jobs_of_several_platforms_that_push_one_tag(
    push: str, tags: str, outputs: str, count: int
) -> None:
    text = ACTION.format(push=push, tags=tags, outputs=outputs)
    found = findings({"ci.yml": text}, "ci.overwritten-tag")
    assert [item.level for item in found] == [Level.ERROR] * count


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("TAG=$(crane ls ghcr.io/a/b | tail -1)", 1),
        ("tag=`skopeo list-tags docker://r/a | jq -r .Tags[] | tail -n 1`", 1),
        ("curl -s https://r.io/v2/a/tags/list | jq -r '.tags[]' | sort | tail -1", 1),
        ("crane ls ghcr.io/a/b | head -n1", 1),
        ("crane ls ghcr.io/a/b | sort -V | tail -1", 0),
        ("crane ls ghcr.io/a/b | sort --version-sort | tail -1", 0),
        ("crane ls ghcr.io/a/b | grep v1", 0),
        ("cat log | tail -1", 0),
        ("crane digest a; tail -1 log", 0),
    ],
)
def test_the_last_of_an_unsorted_tag_list_is_a_guess(line: str, count: int) -> None:
    found = findings({"pick.sh": f"#!/bin/sh\n{line}\n"}, "ci.guessed-tag")
    assert [item.level for item in found] == [Level.ERROR] * count


@pytest.mark.parametrize(
    ("extra", "image", "count"),
    [
        ("", "nvidia/cuda:12.8.1-base-ubuntu22.04", 1),
        ("", "ghcr.io/a/b:1", 0),
        ("      - uses: docker/login-action@v3\n", "nvidia/cuda:1", 0),
        ("      - run: docker login -u x\n", "nvidia/cuda:1", 0),
    ],
)
def test_a_wide_matrix_pulls_from_docker_hub(extra: str, image: str, count: int) -> None:
    text = (
        "jobs:\n  build:\n    strategy: {matrix: {cuda: [1, 2, 3]}}\n    steps:\n"
        f"{extra}      - run: docker pull {image}\n"
    )
    assert len(findings({"ci.yml": text}, "ci.rate-limit")) == count


def test_aliases_in_jobs_and_pods_do_not_stop_the_audit() -> None:
    laughs = "\n".join(
        [
            "x0: &x0 {a: [x]}",
            *(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]" for i in range(1, 25)),
        ]
    )
    job = "jobs: {a: {strategy: {matrix: {arch: *x24}}, steps: *x24}}"
    pod = "apiVersion: v1\nkind: Pod\nspec: {containers: *x24, b: *x24}"
    findings({"ci.yml": f"{laughs}\n{job}", "pod.yml": f"{laughs}\n{pod}"})
