from __future__ import annotations

import pytest

from tests.unit.audit.textaudit import findings, grave
from torchproof.model.results import Level

DIGEST = "@sha256:" + "a" * 64
PYTHON = f"FROM python:3.11{DIGEST}\n"
CUDA = f"FROM nvidia/cuda:12.8.1-devel-ubuntu22.04{DIGEST}\n"

CLEAN = f"""\
# syntax=docker/dockerfile:1
ARG PYTHON=3.11
FROM python:3.11{DIGEST} AS build
ENV PATH=/opt/venv/bin:$PATH
COPY requirements.txt /tmp/requirements.txt
RUN python -m venv /opt/venv && \\
    # a comment inside
    pip install --no-cache-dir --require-hashes -r /tmp/requirements.txt
RUN pip install torch==2.9.1 --index-url https://download.pytorch.org/whl/cu128

FROM python:3.11{DIGEST}
ENV PATH=/opt/venv/bin:$PATH
COPY --from=build /opt/venv /opt/venv
COPY . /app
ARG GIT_SHA
LABEL revision=$GIT_SHA
ENTRYPOINT ["python", "-m", "app"]
"""


def test_a_careful_dockerfile_has_no_finding() -> None:
    assert findings(CLEAN) == []


@pytest.mark.parametrize(
    "base",
    [
        "python",
        "python:latest",
        "ubuntu:rolling",
        "ghcr.io/a/b:nightly",
        "ghcr.io/a/b:py311-latest",
        "registry.example:5000/team/torch",
        "a/b:auto",
    ],
)
def test_a_floating_tag_is_an_error(base: str) -> None:
    (found,) = findings(f"FROM {base}\n", "base.floating")
    assert found.level is Level.ERROR
    assert found.where == "Dockerfile:1"
    assert "sha256" in found.fix


@pytest.mark.parametrize(
    "text",
    [
        "FROM python:3.11-slim\n",
        "ARG V=12.8.1\nFROM nvidia/cuda:${V}-devel-ubuntu22.04\n",
        "ARG V\nFROM nvidia/cuda:${V:-12.8.1}-devel-ubuntu22.04\n",
        f"{PYTHON}COPY --from=ghcr.io/astral-sh/uv:0.9.1 /uv /bin/\n",
        "ARG BASE\nFROM $BASE\n",
    ],
)
def test_a_tag_without_digest_is_a_warning(text: str) -> None:
    (found,) = findings(text, "base.floating")
    assert found.level is Level.WARNING


@pytest.mark.parametrize(
    "text",
    [
        "FROM scratch\n",
        f"FROM python:3.11{DIGEST} AS a\nFROM a AS b\nFROM B\nCOPY --from=a /x /x\n",
        f"ARG BASE=python{DIGEST}\nFROM $BASE\n",
        "FROM localhost/torchproof/base:debian-bookworm-abc\n",
        f"FROM python{DIGEST}\nFROM python{DIGEST}\nCOPY --from=0 /x /x\n",
    ],
)
def test_a_pinned_or_local_base_has_no_finding(text: str) -> None:
    assert findings(text, "base.floating") == []


@pytest.mark.parametrize(
    ("run", "named"),
    [
        ("pip install torch", "torch"),
        ("pip3 install --no-cache-dir 'torch>=2.0' numpy==1", "torch>=2.0"),
        ("/opt/venv/bin/pip install torch==2.9.*", "torch==2.9.*"),
        ("python3 -m pip install -U torch", "torch"),
        ("python -m pip --no-cache-dir install torchvision", "torchvision"),
        ("uv pip install --system torch", "torch"),
        ("uv pip install torch --index-url=https://download.pytorch.org/whl/cu128", "torch"),
        ("uv add torch", "torch"),
        ("set -eux; sudo -E pip install torch", "torch"),
        ('bash -c "pip install torch"', "torch"),
        ("--mount=type=cache,target=/root/.cache pip install torch", "torch"),
        ("conda install -y -c pytorch pytorch", "pytorch"),
        ("mamba install pytorch torchvision=0.20", "pytorch"),
    ],
)
def test_an_unpinned_torch_is_an_error(run: str, named: str) -> None:
    (found,) = findings(f"{PYTHON}RUN {run}\n", "dockerfile.unpinned")
    assert found.level is Level.ERROR
    assert found.where == "Dockerfile:2"
    assert named in found.message


@pytest.mark.parametrize(
    "text",
    [
        'RUN ["pip", "install", "torch"]\n',
        "RUN <<EOF\nset -e\npip install torch\nEOF\n",
        "RUN apt-get update && \\\n    # why\n\n    pip install \\\n      torch\n",
    ],
)
def test_every_form_of_run_is_read(text: str) -> None:
    found = findings(PYTHON + text, "dockerfile.unpinned", [Level.ERROR])
    assert [item.message for item in found] == ["not pinned: torch"]


def test_the_line_of_the_command_is_named_inside_a_long_run() -> None:
    text = f"{PYTHON}RUN true && \\\n    # why\n    true && \\\n    pip install torch\n"
    assert findings(text, "dockerfile.unpinned")[0].where == "Dockerfile:5"


@pytest.mark.parametrize(
    "run",
    [
        "pip install torch==2.9.1 numpy==2.1.0",
        "pip install -r requirements.txt",
        "pip install -r requirements.txt -c constraints.txt numpy",
        "pip install .",
        "pip install -e .[dev]",
        "pip install ./wheels/torch-2.9.1.whl",
        "pip install 'torch @ https://example.org/torch-2.9.1.whl'",
        'pip install "torch==${TORCH_VERSION}"',
        "pip install git+https://github.com/a/b@0123456",
        "pip list && pip check && pip uninstall -y torch",
        "uv sync --frozen --no-dev",
        "uv lock",
        "conda install -y pytorch=2.5.1 'numpy=2'",
        "echo pip install torch > notes",
        "python -c 'print(1)'",
    ],
)
def test_a_pinned_install_has_no_finding(run: str) -> None:
    assert grave(f"{PYTHON}RUN {run}\n", "dockerfile.unpinned") == []


@pytest.mark.parametrize(
    "run",
    [
        "pip install numpy",
        "pip install git+https://github.com/a/b",
        "pip install git+https://github.com/a/b#egg=b@1",
        "uv sync",
        "apt-get install -y libcudnn9-cuda-12",
        "apt-get upgrade -y",
        "apt-get -y dist-upgrade",
        "conda update --all",
        "conda install numpy",
    ],
)
def test_other_unpinned_installs_are_warnings(run: str) -> None:
    (found,) = findings(f"{PYTHON}RUN {run}\n", "dockerfile.unpinned")
    assert found.level is Level.WARNING


def test_unpinned_system_packages_are_notes() -> None:
    text = f"{PYTHON}RUN apt-get update && apt-get install -y gcc git\n"
    (found,) = findings(text, "dockerfile.unpinned")
    assert found.level is Level.NOTE
    assert "gcc, git" in found.message


def test_an_unpinned_requirements_file_is_found_with_its_line() -> None:
    texts = {"app/requirements.txt": "# pins\nnumpy==2.1\ntorch>=2.4  # why\n-r other.txt\n"}
    (found,) = findings(texts, "dockerfile.unpinned")
    assert (found.level, found.where) == (Level.ERROR, "app/requirements.txt:3")


@pytest.mark.parametrize(
    "text",
    [
        f"{CUDA}ARG CUDA_VERSION=12.9\nRUN echo $CUDA_VERSION\n",
        f"{CUDA}ARG NCCL_VERSION=2.28\nRUN apt-get install libnccl2=${{NCCL_VERSION}}\n",
        f"FROM nvcr.io/nvidia/pytorch:25.05-py3{DIGEST}\nARG NCCL_VERSION=2\nENV A=$NCCL_VERSION\n",
        f"{PYTHON}ENV V=1\nARG V=2\nRUN echo ${{V}}\n",
        f"FROM python:3.11{DIGEST} AS a\nENV V=1\nFROM a\nARG V=2\nRUN echo ${{V:-3}}\n",
        f"FROM python:3.11{DIGEST}\nARG PYTHON_VERSION\nRUN uv python install $PYTHON_VERSION\n",
    ],
)
def test_an_argument_hidden_by_env_is_an_error_where_it_is_read(text: str) -> None:
    (found,) = findings(text, "dockerfile.hidden-arg")
    assert found.level is Level.ERROR
    assert "ENV wins" in found.message


@pytest.mark.parametrize(
    "text",
    [
        f"{PYTHON}ARG V=2\nENV V=$V\nRUN echo $V\n",
        f"{PYTHON}ARG V=2\nRUN echo $V\n",
        f"ARG CUDA_VERSION=12.8\n{CUDA}RUN true\n",
        f"FROM python:3.11{DIGEST} AS a\nENV V=1\nFROM python:3.11{DIGEST}\nARG V=2\nRUN echo $V\n",
        f"{CUDA}ARG TORCH_VERSION=2.9.1\nRUN echo $TORCH_VERSION\n",
    ],
)
def test_an_argument_that_works_has_no_finding(text: str) -> None:
    assert findings(text, "dockerfile.hidden-arg") == []


@pytest.mark.parametrize(
    "step",
    [
        "RUN pip install torch==$V\n",
        'RUN pip install "torch==${V}"\n',
        "ENV TORCH=$V\n",
        "COPY wheels/${V} /w\n",
        "ARG W=1\nRUN echo $W && echo ${V:-}\n",
    ],
)
def test_an_argument_above_from_is_empty_in_a_stage(step: str) -> None:
    (found,) = findings(f"ARG V=2.9.1\n{PYTHON}{step}", "dockerfile.lost-arg")
    assert found.level is Level.ERROR
    assert "ARG NAME" in found.fix


@pytest.mark.parametrize(
    "text",
    [
        f"ARG V=2.9.1\n{PYTHON}ARG V\nRUN pip install torch==$V\n",
        "ARG V=2.9.1\nFROM python:$V\nRUN echo $HOME\n",
        f"ARG V=1\n{PYTHON}RUN V=2 && echo $V\n",
        f"ARG V=1\n{PYTHON}RUN for V in a b; do echo $V; done\n",
        f"ARG V=1\n{PYTHON}ENV V=2\nRUN echo $V\n",
        f"ARG V=1\nFROM python{DIGEST} AS a\nARG V\nFROM a\nRUN echo $V\n",
        f"ARG CUDA_VERSION=12\n{CUDA}RUN echo $CUDA_VERSION\n",
    ],
)
def test_an_argument_that_a_stage_sees_has_no_finding(text: str) -> None:
    assert findings(text, "dockerfile.lost-arg") == []


DEFINITION = """\
Bootstrap: docker
From: nvidia/cuda:11.2.2-devel-ubuntu20.04

%environment
    export A=1
%post
    apt-get update
    pip3 install torch
%runscript
    pip install numpy
"""


def test_an_apptainer_definition_is_audited_like_a_dockerfile() -> None:
    found = {item.rule: item for item in grave({"torch.def": DEFINITION})}
    assert found["base.apt-key"].where == "torch.def:7"
    assert found["dockerfile.unpinned"].where == "torch.def:8"
    assert found["base.deleted-tag"].where == "torch.def:2"
    assert found["dockerfile.unpinned"].message == "not pinned: torch"


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("ENTRYPOINT python train.py\n", Level.WARNING),
        ("CMD python train.py\n", Level.WARNING),
        ("ENTRYPOINT exec python train.py\n", None),
        ('CMD ["python"]\n', None),
        ('CMD python\nCMD ["python"]\n', None),
        ('ENTRYPOINT ["/tini", "--"]\nCMD ["python"]\n', None),
        ("CMD []\n", None),
    ],
)
def test_a_shell_form_entrypoint_keeps_signals(text: str, level: Level | None) -> None:
    found = findings(PYTHON + text, "dockerfile.shell-form")
    assert [item.level for item in found] == ([level] if level else [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "RUN true\n",
        "FROM a:1\nRUNN true\n",
        "<<<<<<< HEAD\n",
        "FROM a:1\nCOPY <<EOF /x\nno end",
    ],
)
def test_broken_text_gives_findings_and_no_crash(text: str) -> None:
    findings(text)


def test_windows_line_ends_and_the_escape_directive_are_understood() -> None:
    text = f"# escape=`\r\n{PYTHON}RUN pip install `\r\n  torch\r\n".replace("\n\r\n", "\n")
    (found,) = findings(text, "dockerfile.unpinned")
    assert found.message == "not pinned: torch"
