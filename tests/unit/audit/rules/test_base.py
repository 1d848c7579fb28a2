from __future__ import annotations

import pytest

from tests.unit.audit import audit_files
from tests.unit.audit.textaudit import findings
from torchproof.audit.rule import evaluate
from torchproof.audit.rules.recipes import base as baseimages
from torchproof.model.results import Level


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("nvidia/cuda:10.2-cudnn7-devel-ubuntu18.04", "no longer exists"),
        ("nvidia/cuda:11.4.0-cudnn8-devel-ubuntu20.04", "no longer exists"),
        ("docker.io/nvidia/cuda:12.1.0-base-ubuntu22.04", "12.1.1"),
        ("nvidia/cuda:12.6.0-devel-ubuntu22.04", "12.6.3"),
        ("nvcr.io/nvidia/cuda:12.4.1-cudnn8-devel-ubuntu22.04", "spelled cudnn"),
        ("nvidia/cuda:12.1.1-cudnn-devel-ubuntu22.04", "spelled cudnn8"),
    ],
)
def test_a_deleted_tag_of_nvidia_cuda_is_an_error(base: str, words: str) -> None:
    (found,) = findings(f"FROM {base}\n", "base.deleted-tag")
    assert found.level is Level.ERROR
    assert words in found.message
    assert found.where == "Dockerfile:1"


def test_a_tag_past_its_support_is_a_warning() -> None:
    (found,) = findings("FROM nvidia/cuda:11.8.0-devel-ubuntu22.04\n", "base.deleted-tag")
    assert found.level is Level.WARNING


@pytest.mark.parametrize(
    "base",
    [
        "nvidia/cuda:12.8.1-cudnn-devel-ubuntu24.04",
        "nvidia/cuda:13.0.1-base-ubuntu24.04",
        "nvidia/cuda:13.4.0-base-ubuntu24.04",
        f"nvidia/cuda:11.4.0-base-ubuntu20.04@sha256:{'a' * 64}",
        "mirror.example/nvidia/cuda-mirror:10.2",
        "python:3.11",
    ],
)
def test_a_live_or_unknown_tag_has_no_finding(base: str) -> None:
    assert findings(f"FROM {base}\n", "base.deleted-tag") == []


@pytest.mark.parametrize(
    "texts",
    [
        {"Dockerfile": "FROM --platform=linux/arm64 pytorch/pytorch:2.9.1-cuda12.8-cudnn9-devel\n"},
        {
            "Dockerfile": "FROM pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime\n",
            "build.sh": "#!/bin/sh\ndocker buildx build --platform linux/amd64,linux/arm64 .\n",
        },
        {
            "Dockerfile": "FROM pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime\n",
            "ci.yml": "build:\n  script:\n    - docker build --platform=linux/arm64 .\n",
        },
    ],
)
def test_a_base_without_the_platform_is_an_error(texts: dict[str, str]) -> None:
    (found,) = findings(texts, "base.platform")
    assert "linux/arm64" in found.message
    assert "nvidia/cuda" in found.fix


@pytest.mark.parametrize(
    "texts",
    [
        {"Dockerfile": "FROM pytorch/pytorch:2.9.1-cuda12.8-cudnn9-devel\n"},
        {"Dockerfile": "FROM --platform=linux/arm64 nvidia/cuda:12.8.1-base-ubuntu24.04\n"},
        {"Dockerfile": "FROM --platform=$BUILDPLATFORM pytorch/pytorch:2.9.1-cuda12.8-cudnn9\n"},
    ],
)
def test_a_base_with_the_platform_has_no_finding(texts: dict[str, str]) -> None:
    assert findings(texts, "base.platform") == []


@pytest.mark.parametrize(
    "text",
    [
        "FROM nvidia/cuda:11.2.2-devel-ubuntu20.04\nRUN apt-get update\n",
        "FROM nvidia/cuda:10.2-base AS a\nFROM a\nRUN apt update && apt install -y git=1\n",
        "FROM nvcr.io/nvidia/pytorch:21.06-py3\nRUN set -e; apt-get -qq update\n",
    ],
)
def test_apt_over_the_revoked_key_is_an_error(text: str) -> None:
    (found,) = findings(text, "base.apt-key")
    assert "7fa2af80" in found.message
    assert "cuda.list" in found.fix


@pytest.mark.parametrize(
    "text",
    [
        "FROM nvidia/cuda:11.2.2-devel-ubuntu20.04\n"
        "RUN rm /etc/apt/sources.list.d/cuda.list /etc/apt/sources.list.d/nvidia-ml.list"
        " && apt-get update\n",
        "FROM nvidia/cuda:11.2.2-devel-ubuntu20.04\nRUN apt-key adv --fetch-keys x/3bf863cc.pub\n"
        "RUN apt-get update\n",
        "FROM nvidia/cuda:12.8.1-devel-ubuntu22.04\nRUN apt-get update\n",
        "FROM nvidia/cuda:11.2.2-devel-ubuntu20.04\nRUN true\n",
        "FROM ubuntu:18.04\nRUN apt-get update\n",
    ],
)
def test_apt_with_a_good_key_has_no_finding(text: str) -> None:
    assert findings(text, "base.apt-key") == []


def test_two_lists_of_one_repository_with_and_without_signed_by_conflict() -> None:
    url = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2004/x86_64"
    facts = audit_files.facts_of(
        {
            "/etc/apt/sources.list.d/cuda.list": f"deb {url} /\n",
            "/etc/apt/sources.list.d/cuda-ubuntu2004-x86_64.list": (
                f"deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] {url}/ /\n"
            ),
        }
    )
    (found,) = [item for item in evaluate(baseimages.RULES, facts) if item.rule == "base.apt-key"]
    assert found.where == "/etc/apt/sources.list.d/cuda.list"


@pytest.mark.parametrize(
    ("tag", "wanted", "count"),
    [
        ("25.05-py3", "torch>=2.8.0", 1),
        ("25.05-py3", "torch==2.8.0", 1),
        ("25.05-py3", "torch>=2.6", 0),
        ("99.01-py3", "torch>=2.6", 1),
        ("25.05-py3", "torch", 0),
        ("25.05-py3", "numpy>=2", 0),
    ],
)
def test_a_requirement_that_ngcs_prerelease_cannot_meet(tag: str, wanted: str, count: int) -> None:
    text = f"FROM nvcr.io/nvidia/pytorch:{tag}\nRUN pip install '{wanted}'\n"
    assert len(findings(text, "base.prerelease")) == count
