from __future__ import annotations

import pytest

from tests.unit.audit.textaudit import findings, grave
from torchproof.model.results import Level

CUDA12 = f"FROM nvidia/cuda:12.9.1-devel-ubuntu22.04@sha256:{'a' * 64}\n"
PLAIN = f"FROM python:3.11@sha256:{'a' * 64}\n"
WHL = "https://download.pytorch.org/whl"


@pytest.mark.parametrize(
    "run",
    [
        f"pip install torch==2.9.1 --index-url {WHL}/cu$(echo $CUDA_VERSION | tr -d .)",
        f"pip install torch==2.9.1 -i {WHL}/cu${{CUDA_VERSION//./}}",
        f"uv pip install torch==2.9.1 --index-url={WHL}/cu`echo $CUDA_VERSION | cut -c1-4`",
        f"V=cu$(nvcc --version | sed s/x//) && pip install torch==2.9.1 --index-url {WHL}/$V",
        f"pip install torch==2.9.1 --extra-index-url {WHL}/cu${{CUDA_VERSION%.*}}",
        f"PIP_INDEX_URL={WHL}/cu$(echo $CUDA_VERSION) pip install torch==2.9.1",
        f"export UV_INDEX_URL={WHL}/cu${{CUDA_VERSION}} && uv pip install torch==2.9.1",
    ],
)
def test_an_index_computed_from_the_cuda_version_is_an_error(run: str) -> None:
    found = findings(f"{CUDA12}RUN {run}\n", "index.derived")
    assert [item.level for item in found] == [Level.ERROR]
    assert found[0].where == "Dockerfile:2"


@pytest.mark.parametrize(
    "text",
    [
        f"{CUDA12}RUN pip install torch==2.9.1 --index-url {WHL}/cu128\n",
        f"{CUDA12}ARG CU=cu128\nRUN pip install torch==2.9.1 --index-url {WHL}/$CU\n",
        f"{PLAIN}ARG CU\nRUN pip install torch==2.9.1 --index-url {WHL}/${{CU}}\n",
        f"{PLAIN}RUN pip install numpy==2 --index-url https://mirror.example/$(whoami)/simple\n",
    ],
)
def test_an_index_that_is_written_out_has_no_finding(text: str) -> None:
    assert findings(text, "index.derived") == []


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (f"pip install torch==2.11.0 --index-url {WHL}/cu134", ["cu134", "cu130"]),
        (f"pip install torch==2.9.1 --index-url {WHL}/cu121", ["2.9.1", "cu121", "cu126"]),
        (f"uv pip install torch==2.7.1 -i {WHL}/cu124", ["2.7.1", "nearest: cu118"]),
        ("pip install torch==2.9.1+cu118", ["2.9.1", "cu118"]),
        (f"python3 -m pip install --extra-index-url {WHL}/cu99 torch", ["cu99"]),
    ],
)
def test_a_cuda_that_is_not_published_is_an_error_with_the_nearest(
    run: str, words: list[str]
) -> None:
    (found,) = findings(f"{PLAIN}RUN {run}\n", "index.unpublished")
    assert all(word in found.message for word in words), found.message


def test_a_resolved_argument_is_checked_against_what_is_published() -> None:
    text = f"ARG X=1\n{PLAIN}ARG CU=cu121\nRUN pip install torch==2.9.1 -i {WHL}/${{CU}}\n"
    (found,) = findings(text, "index.unpublished")
    assert found.where == "Dockerfile:4"


@pytest.mark.parametrize(
    "run",
    [
        f"pip install torch==2.7.1 --index-url {WHL}/cu118",
        f"pip install torch==2.9.1+cu128 --index-url {WHL}/cu128",
        f"pip install --pre torch --index-url {WHL}/nightly/cu134",
        f"pip install torch==2.9.1 --index-url {WHL}/cpu",
        f"pip install torch==9.9.9 --index-url {WHL}/cu128",
    ],
)
def test_a_published_cuda_has_no_finding(run: str) -> None:
    assert findings(f"{PLAIN}RUN {run}\n", "index.unpublished") == []


@pytest.mark.parametrize(
    "run",
    [
        "pip install torch",
        "uv pip install --system torch>2",
        "pip install -U torch torchvision",
        "pip install torch==2.13.0",
        "uv add torch==2.13.0",
    ],
)
def test_the_default_index_on_a_cuda_12_base_is_an_error(run: str) -> None:
    (found,) = findings(f"{CUDA12}RUN {run}\n", "index.default-cuda")
    assert found.level is Level.ERROR
    assert "12.9" in found.message


def test_a_requirements_file_counts_where_it_is_installed() -> None:
    texts = {
        "Dockerfile": f"{CUDA12}COPY requirements.txt .\nRUN pip install -r requirements.txt\n",
        "requirements.txt": "torch==2.13.0\n",
    }
    (found,) = findings(texts, "index.default-cuda")
    assert found.where == "Dockerfile:3"
    texts["requirements.txt"] = f"--index-url {WHL}/cu126\ntorch==2.13.0\n"
    assert findings(texts, "index.default-cuda") == []


@pytest.mark.parametrize(
    "text",
    [
        f"{CUDA12}RUN pip install torch==2.9.1\n",
        f"{PLAIN}RUN pip install torch==2.13.0\n",
        f"{CUDA12}RUN uv pip install torch==2.13.0 --torch-backend=cu129\n",
        f"{CUDA12}ENV UV_TORCH_BACKEND=cu128\nRUN uv pip install torch\n",
        f"{CUDA12}RUN pip install torch==2.13.0 --index-url https://mirror.example/simple\n",
        f"{CUDA12}RUN pip install numpy==2\n",
        f"{CUDA12}ENV PIP_INDEX_URL={WHL}/cu126\nRUN pip install torch==2.13.0\n",
    ],
)
def test_a_chosen_cuda_on_its_base_has_no_finding(text: str) -> None:
    assert findings(text, "index.default-cuda") == []


@pytest.mark.parametrize(
    "run",
    [
        f"uv pip install torch==2.11.0 --index-url {WHL}/cu128 --extra-index-url https://a/simple",
        f"uv pip install torch --extra-index-url=https://a/simple --index-url={WHL}/cu128",
        f"uv pip install torch==2.11.0 --default-index {WHL}/cu128 --index https://a/simple",
        f"UV_EXTRA_INDEX_URL=https://a/simple uv pip install torch -i {WHL}/cu128",
        f"uv add torch==2.11.0 --index-url {WHL}/cu128 --extra-index-url https://a/simple",
    ],
)
def test_an_extra_index_hides_the_cuda_index_from_uv(run: str) -> None:
    (found,) = findings(f"{PLAIN}RUN {run}\n", "index.uv-extra")
    assert found.level is Level.ERROR
    assert "https://a/simple" in found.message
    assert f"{WHL}/cu128" in found.message


@pytest.mark.parametrize(
    "run",
    [
        f"pip install torch==2.11.0 --index-url {WHL}/cu128 --extra-index-url https://a/simple",
        f"uv pip install torch==2.11.0 --extra-index-url {WHL}/cu128",
        f"uv pip install torch==2.11.0 --index-url {WHL}/cu128",
        f"uv pip install numpy==2 --index-url {WHL}/cu128 --extra-index-url https://a/simple",
        f"uv pip install torch==2.11.0+cu128 --index-url {WHL}/cu128 --extra-index-url https://a/s",
    ],
)
def test_pip_and_single_indexes_are_no_uv_fault(run: str) -> None:
    assert findings(f"{PLAIN}RUN {run}\n", "index.uv-extra") == []


@pytest.mark.parametrize(
    "run",
    [
        f"pip install torch --extra-index-url {WHL}/cu128",
        f"pip install 'torch>=2.4' -i https://a/simple --extra-index-url {WHL}/cu128",
        f"uv pip install torch --extra-index-url {WHL}/cu128 --index-strategy unsafe-best-match",
    ],
)
def test_two_indexes_and_no_pin_are_an_error(run: str) -> None:
    (found,) = findings(f"{PLAIN}RUN {run}\n", "index.mixed")
    assert found.level is Level.ERROR


@pytest.mark.parametrize(
    "run",
    [
        f"pip install torch==2.9.1 --extra-index-url {WHL}/cu128",
        f"pip install torch --index-url {WHL}/cu128",
        f"pip install torch --extra-index-url {WHL}/cu128 -c constraints.txt",
        f"uv pip install torch --extra-index-url {WHL}/cu128",
    ],
)
def test_one_index_or_a_pin_is_not_mixed(run: str) -> None:
    assert findings(f"{PLAIN}RUN {run}\n", "index.mixed") == []


@pytest.mark.parametrize(
    "text",
    [
        "FROM --platform=linux/arm64 ubuntu:24.04\nRUN pip install torch==2.8.0\n",
        "FROM arm64v8/python:3.11\nRUN pip install torch==2.9.1\n",
        "FROM ghcr.io/a/b:1-aarch64\nRUN uv pip install torch==2.8.0 torchvision==0.23.0\n",
    ],
)
def test_the_default_index_has_a_cpu_torch_for_arm64(text: str) -> None:
    (found,) = findings(text, "index.arm64-cpu")
    assert "CPU build" in found.message


@pytest.mark.parametrize(
    "text",
    [
        f"FROM --platform=linux/arm64 u:1\nRUN pip install torch==2.8.0 -i {WHL}/cu129\n",
        "FROM --platform=linux/arm64 u:1\nRUN pip install torch==2.13.0\n",
        "FROM --platform=linux/amd64 u:1\nRUN pip install torch==2.8.0\n",
    ],
)
def test_a_cuda_torch_for_arm64_has_no_finding(text: str) -> None:
    assert findings(text, "index.arm64-cpu") == []


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        ({"requirements.txt": "torch==2.9.0+cpu\ntorchvision==0.24.0\n"}, 1),
        ({"requirements.txt": "torch==2.9.0\ntorchaudio==2.9.0+cpu\n"}, 1),
        ({"requirements.txt": "torch==2.9.0+cpu\ntorchvision==0.24.0+cpu\n"}, 0),
        ({"requirements.txt": "torch==2.9.0\ntorchvision==0.24.0\n"}, 0),
        ({"requirements.txt": f"-i {WHL}/cpu\ntorch==2.9.0+cpu\ntorchvision==0.24.0\n"}, 0),
        ({"Dockerfile": f"{PLAIN}RUN pip install torch==2.9.0+cpu torchvision==0.24.0\n"}, 1),
    ],
)
def test_companions_of_another_build_are_an_error(texts: dict[str, str], count: int) -> None:
    assert len(findings(texts, "index.companions")) == count


def test_shell_scripts_makefiles_and_ci_steps_are_read_too() -> None:
    command = f"pip install torch==2.9.1 --index-url {WHL}/cu121"
    ci = f"""\
jobs:
  build:
    steps:
      - name: install
        run: |
          set -e
          {command}
"""
    texts = {
        "build.sh": f"#!/bin/bash\n\n{command}\n",
        "Makefile": f"all:\n\t@{command}\n",
        ".github/workflows/ci.yml": ci,
        "notes.md": command,
    }
    where = sorted(found.where for found in findings(texts, "index.unpublished"))
    assert where == [".github/workflows/ci.yml:7", "Makefile:2", "build.sh:3"]


def test_environment_of_a_ci_job_reaches_its_steps() -> None:
    ci = f"""\
env:
  CU: cu121
jobs:
  build:
    steps:
      - run: pip install torch==2.9.1 --index-url {WHL}/${{CU}}
"""
    (found,) = grave({"ci.yaml": ci}, "index.unpublished")
    assert found.where == "ci.yaml:6"


PROJECT = """\
[project]
dependencies = ["numpy==2.1", "torch==2.11.0"]
[tool.uv]
index-url = "{main}"
extra-index-url = ["{extra}"]
"""
SOURCED = f"""\
[project]
dependencies = ["torch==2.9.1"]
[[tool.uv.index]]
name = "cu128"
url = "{WHL}/cu128"
explicit = true
[tool.uv.sources]
torch = {{index = "cu128"}}
"""


def test_a_project_file_is_read_as_uv_reads_it() -> None:
    bad = PROJECT.format(main=f"{WHL}/cu128", extra="https://a/simple")
    (found,) = findings({"pyproject.toml": bad}, "index.uv-extra")
    assert found.where == "pyproject.toml:2"
    unpublished = PROJECT.format(main=f"{WHL}/cu121", extra=f"{WHL}/cu121")
    assert findings({"pyproject.toml": unpublished}, "index.unpublished")


@pytest.mark.parametrize(
    "text",
    [
        SOURCED,
        '[project]\ndependencies = ["torch>=2"]\n',
        "[project]\ndependencies = 3\n[tool]\nuv = []\n",
        "not toml [",
        "[tool.uv]\nsources = 1\n",
    ],
)
def test_a_project_that_names_its_index_has_no_finding(text: str) -> None:
    assert findings({"pyproject.toml": text}) == []


def test_a_base_that_brings_torch_satisfies_an_install_without_a_version() -> None:
    base = f"FROM pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime@sha256:{'a' * 64}\n"
    assert findings(f"{base}RUN pip install torch\n", "index.default-cuda") == []
    assert findings(f"{base}RUN pip install -U torch\n", "index.default-cuda")
    assert findings(f"{base}RUN pip install torch==2.13.0\n", "index.default-cuda")
