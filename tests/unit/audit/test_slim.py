"""The audit of slim images: every library against the GPUs that the image was made for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.audit.audit_files import SITE, Content, facts_of, findings, wheel
from torchproof.audit.facts import Detail, ImageFacts, RunConfig
from torchproof.audit.reading.elf_facts import ElfFacts
from torchproof.model.results import Finding, Level

TORCH = f"{SITE}/torch/lib/libtorch_cuda.so"
NCCL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"


def library(*archs: str, emptied: bool = False) -> Detail:
    return Detail(elf=ElfFacts(machine="x86_64"), archs=archs, emptied=emptied)


def slim_image(gpus: str, **files: Content) -> ImageFacts:
    paths = {"torch": TORCH, "nccl": NCCL}
    content = {paths[name]: detail for name, detail in files.items()}
    facts = facts_of({**wheel("torch", "2.9.1+cu128"), **content})
    return replace(facts, config=RunConfig(labels={"torchproof.gpus": gpus}))


def found(facts: ImageFacts) -> list[Finding]:
    return findings("architectures.slim", facts)


def test_libraries_that_serve_the_gpu_are_no_finding() -> None:
    assert not found(slim_image("sm_90", torch=library("sm_90"), nccl=library("sm_90")))


def test_a_torch_without_code_for_the_gpu_is_an_error() -> None:
    (one,) = found(slim_image("sm_90,sm_100", torch=library("sm_90"), nccl=library("compute_90")))
    assert one.level is Level.ERROR
    assert "made for sm_100" in one.message
    assert one.where == TORCH


def test_another_library_without_it_is_a_warning() -> None:
    (one,) = found(slim_image("sm_90", torch=library("sm_90"), nccl=library("sm_80")))
    assert one.level is Level.WARNING
    assert "libnccl.so.2 has code for sm_80 alone" in one.message


def test_a_library_whose_code_is_all_zeros_is_noted() -> None:
    (one,) = found(slim_image("sm_90", torch=library("sm_90"), nccl=library(emptied=True)))
    assert one.level is Level.NOTE
    assert "libnccl.so.2 has none for it" in one.message


def test_a_torch_whose_code_is_all_zeros_is_an_error() -> None:
    (one,) = found(slim_image("sm_90", torch=library(emptied=True)))
    assert one.level is Level.ERROR


@pytest.mark.parametrize("gpus", ["", "H100", "sm_"])
def test_labels_that_name_no_architecture_are_passed_over(gpus: str) -> None:
    assert not found(slim_image(gpus, torch=library("sm_80")))
