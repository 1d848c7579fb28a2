"""The generated Dockerfiles: golden files, sharing, quoting, hadolint."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.golden_files import GOLDEN, assert_golden
from torchproof.errors import InputError
from torchproof.image.dockerfile import base_ref, quote, render, requirements
from torchproof.model.lock import LayerName, Lock, LockedBase, LockedWheel

IMAGES = Path(__file__).parents[3] / "images"
DIGEST = "sha256:" + "5" * 64


def wheel(name: str, version: str, layer: LayerName, index: str = "pypi") -> LockedWheel:
    return LockedWheel(
        name=name,
        version=version,
        filename=f"{name.replace('-', '_')}-{version}-py3-none-any.whl",
        sha256=f"{sum(map(ord, name + version)):064x}",
        size=1_500_000,
        index=index,
        layer=layer,
    )


LOCK = Lock(
    cell="2.9.1-cu128-py311",
    torch="2.9.1",
    cuda="cu128",
    cudnn="9.10.2.21",
    nccl="2.27.5",
    triton="3.5.1",
    python="3.11",
    platform="linux/amd64",
    base=LockedBase(bootstrap="debian/bookworm", packages=("gcc", "python3", "python3-venv")),
    wheels=(
        wheel("nvidia-cublas-cu12", "12.8.4.1", LayerName.CUDA),
        wheel("nvidia-cudnn-cu12", "9.10.2.21", LayerName.CUDNN),
        wheel("filelock", "3.20.0", LayerName.TORCH),
        wheel("torch", "2.9.1", LayerName.TORCH),
        wheel("nvidia-nccl-cu12", "2.27.5", LayerName.NCCL),
    ),
    archs=("sm_80", "sm_90"),
    driver_floor="525.60.13",
)
VARIANTS = {
    "plain": LOCK,
    "image-base": replace(
        LOCK,
        base=LockedBase(image=f"docker.io/library/debian@{DIGEST}", packages=("python3",)),
    ),
    "wheelhouse-and-extras": replace(
        LOCK,
        wheels=(
            *LOCK.wheels[:3],
            wheel("torch", "2.9.1", LayerName.TORCH, "wheelhouse"),
            LOCK.wheels[4],
            wheel("numpy", "2.3.5", LayerName.EXTRAS),
        ),
    ),
}


def dockerfile(lock: Lock) -> str:
    return render(lock)["Dockerfile"]


def steps(lock: Lock) -> list[str]:
    """The instructions of the last stage up to NCCL, as a builder compares them."""
    joined = re.sub(r"#.*\n", lambda match: match[0], dockerfile(lock)).replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return lines[: next(place for place, line in enumerate(lines) if "nccl.txt" in line)]


@pytest.mark.parametrize("name", VARIANTS)
def test_files_are_the_golden_ones(name: str) -> None:
    lock = VARIANTS[name]
    for file, text in render(lock).items():
        assert_golden(f"dockerfiles/{name}/{file}", text)


def test_hadolint_finds_nothing() -> None:
    files = [*IMAGES.glob("*/Dockerfile"), *(GOLDEN / "dockerfiles").glob("*/Dockerfile")]
    assert len(files) >= len(VARIANTS)
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_an_override_of_nccl_changes_no_step_below_it() -> None:
    override = wheel("nvidia-nccl-cu12", "2.30.7", LayerName.NCCL)
    other = replace(
        LOCK, cell=f"{LOCK.cell}-nccl2.30.7", nccl="2.30.7", wheels=(*LOCK.wheels[:4], override)
    )
    assert steps(LOCK) == steps(other)
    texts = [render(lock) for lock in (LOCK, other)]
    assert texts[0]["torch.txt"] == texts[1]["torch.txt"]
    assert texts[0]["nccl.txt"] != texts[1]["nccl.txt"]


def test_another_list_of_wheels_is_another_text_of_its_step() -> None:
    other = replace(LOCK, wheels=(replace(LOCK.wheels[0], sha256="0" * 64), *LOCK.wheels[1:]))
    assert steps(LOCK) != steps(other)


def test_nothing_is_installed_without_a_hash() -> None:
    for line in dockerfile(LOCK).replace("\\\n", " ").splitlines():
        if " install " in line and "--directory" not in line:
            assert "--require-hashes" in line
            assert "--no-deps" in line


def test_requirements_name_every_wheel_with_its_hash() -> None:
    text = requirements(LOCK.wheels)
    for one in LOCK.wheels:
        assert f"{one.name}=={one.version} \\\n    --hash=sha256:{one.sha256}\n" in text


@pytest.mark.parametrize(
    "image", ["debian:12", "debian", f"debian@{DIGEST} AS x", "debian@sha256:1"]
)
def test_a_base_that_is_not_pinned_by_digest_is_refused(image: str) -> None:
    with pytest.raises(InputError, match="not pinned by digest"):
        base_ref(LockedBase(image=image), "linux/amd64")


def test_the_tag_of_a_made_base_names_its_recipe() -> None:
    one, two = (
        base_ref(LockedBase(bootstrap="debian/bookworm", packages=packages), "linux/amd64")
        for packages in (("python3",), ("gcc", "python3"))
    )
    assert one != two
    assert one.startswith("localhost/torchproof/base:debian-bookworm-")


@pytest.mark.parametrize("name", ["numpy\nRUN evil", "numpy; evil", "$(evil)", "-r evil"])
def test_a_name_that_is_more_than_a_name_is_refused(name: str) -> None:
    evil = replace(LOCK.wheels[0], name=name)
    with pytest.raises(InputError, match="cannot be in a Dockerfile"):
        dockerfile(replace(LOCK, wheels=(evil, *LOCK.wheels[1:])))


@given(st.text(st.characters(min_codepoint=32, exclude_categories=["Cs", "Zl", "Zp", "Cc"])))
def test_a_quoted_value_is_one_word_without_variables(value: str) -> None:
    inner = quote(value)[1:-1]
    assert re.fullmatch(r'(?:[^"\\$]|\\["\\$])*', inner, re.DOTALL)
    assert re.sub(r'\\(["\\$])', r"\1", inner) == value


def test_a_value_with_a_line_break_is_refused() -> None:
    with pytest.raises(InputError):
        quote("a\nRUN evil")


def test_every_committed_dockerfile_is_short() -> None:
    for file in IMAGES.glob("*/Dockerfile"):
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 110
