from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakeindex import make_torch
from torchproof._http import redact
from torchproof.errors import CellError
from torchproof.index.uv import Resolved, WheelFile, parse_pylock
from torchproof.index.wheelhouse import wheelhouse_torch
from torchproof.model.cell import Cell
from torchproof.model.lock import LayerName
from torchproof.resolve.resolver import best_wheel, layer_of
from torchproof.upstream.facts import load_facts

CELL = Cell(torch="2.9.1", cuda="cu128")
FACTS = load_facts()


def _package(*filenames: str) -> Resolved:
    wheels = tuple(
        WheelFile(filename=name, url=f"https://x.example/{name}", sha256=None, size=None)
        for name in filenames
    )
    return Resolved(name="a", version="1.0", wheels=wheels)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("torch", LayerName.TORCH),
        ("triton", LayerName.TORCH),
        ("sympy", LayerName.TORCH),
        ("nvidia-cublas-cu12", LayerName.CUDA),
        ("nvidia-cuda-runtime", LayerName.CUDA),
        ("nvidia-nvshmem-cu12", LayerName.CUDA),
        ("cuda-bindings", LayerName.CUDA),
        ("nvidia-cudnn-cu11", LayerName.CUDNN),
        ("nvidia-cudnn-cu13", LayerName.CUDNN),
        ("nvidia-nccl-cu12", LayerName.NCCL),
        ("numpy", LayerName.EXTRAS),
        ("nvidia-ml-py", LayerName.EXTRAS),
    ],
)
def test_each_wheel_has_its_layer(name: str, layer: LayerName) -> None:
    core = set() if name in ("numpy", "nvidia-ml-py") else {name}
    assert layer_of(name, core) == layer


def test_the_most_specific_wheel_that_fits_is_taken() -> None:
    package = _package(
        "a-1.0-py3-none-any.whl",
        "a-1.0-cp311-cp311-manylinux2014_x86_64.whl",
        "a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "a-1.0-cp311-cp311-manylinux_2_34_x86_64.whl",
        "a-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "a-1.0-cp311-cp311-win_amd64.whl",
    )
    assert best_wheel(package, CELL).filename == "a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"


def test_the_highest_build_number_is_taken() -> None:
    package = _package("a-1.0-1-py3-none-any.whl", "a-1.0-2-py3-none-any.whl")
    assert best_wheel(package, CELL).filename == "a-1.0-2-py3-none-any.whl"


def test_the_choice_does_not_depend_on_the_order() -> None:
    names = ["a-1.0-py3-none-any.whl", "a-1.0-cp311-abi3-manylinux1_x86_64.whl", "rubbish.whl"]
    chosen = {best_wheel(_package(*order), CELL).filename for order in (names, names[::-1])}
    assert chosen == {"a-1.0-cp311-abi3-manylinux1_x86_64.whl"}


def test_plain_linux_wheels_of_older_releases_fit() -> None:
    package = _package("torch-2.5.1+cu121-cp311-cp311-linux_x86_64.whl")
    assert best_wheel(package, CELL)


def test_no_wheel_that_fits_is_a_fault_of_the_cell() -> None:
    with pytest.raises(CellError, match=r"Python 3\.11 on linux/amd64"):
        best_wheel(_package("a-1.0-cp311-cp311-manylinux_2_28_aarch64.whl"), CELL)


@pytest.mark.parametrize(
    ("filename", "fits"),
    [
        ("torch-2.9.1-cp311-cp311-linux_x86_64.whl", True),
        ("torch-2.9.1+cu121-cp311-cp311-linux_x86_64.whl", True),
        ("torch-2.9.1+cu128-cp311-cp311-linux_x86_64.whl", False),
        ("torch-2.9.0+cu121-cp311-cp311-linux_x86_64.whl", False),
        ("torch-2.9.1+cu121-cp312-cp312-linux_x86_64.whl", False),
        ("torch-2.9.1+cu121-cp311-cp311-linux_aarch64.whl", False),
        ("torch-broken.whl", False),
    ],
)
def test_a_wheelhouse_gives_only_the_torch_of_the_cell(
    tmp_path: Path, filename: str, fits: bool
) -> None:
    (tmp_path / filename).touch()
    cell = Cell(torch="2.9.1", cuda="cu121", wheelhouse=tmp_path)
    assert (wheelhouse_torch(cell) is not None) == fits


def test_a_wheel_without_a_local_version_tells_its_cuda_inside(tmp_path: Path) -> None:
    release = FACTS.releases["2.9.1"]
    wheel = make_torch(release, release.builds["cu126"])
    (tmp_path / wheel.filename).write_bytes(wheel.data)
    assert wheelhouse_torch(Cell(torch="2.9.1", cuda="cu126", wheelhouse=tmp_path))
    assert not wheelhouse_torch(Cell(torch="2.9.1", cuda="cu121", wheelhouse=tmp_path))


def test_a_wheelhouse_that_is_not_there_gives_nothing(tmp_path: Path) -> None:
    assert wheelhouse_torch(Cell(torch="2.9.1", cuda="cu121", wheelhouse=tmp_path / "no")) is None


def test_a_pylock_is_read_with_archives_paths_and_missing_hashes() -> None:
    text = """
    lock-version = "1.0"
    [[packages]]
    name = "Torch"
    version = "2.9.1+cu126"
    wheels = [{url = "https://x.example/torch-2.9.1%2Bcu126-py3-none-any.whl", hashes = {}}]
    [[packages]]
    name = "own"
    archive = {path = "wheels/own-1.0-py3-none-any.whl", hashes = {sha256 = "ab"}}
    [[packages]]
    name = "source-only"
    version = "1"
    """
    torch, own, source = parse_pylock(text)
    assert torch.name == "torch"
    assert torch.wheels[0].filename == "torch-2.9.1+cu126-py3-none-any.whl"
    assert torch.wheels[0].sha256 is None
    assert own.wheels[0].filename == "own-1.0-py3-none-any.whl"
    assert source.wheels == ()


def test_user_names_and_passwords_are_taken_out_of_addresses() -> None:
    text = "Failed to fetch: `https://me:hunter2@index.example/simple/torch/` twice http://t@h/"
    assert redact(text) == (
        "Failed to fetch: `https://***@index.example/simple/torch/` twice http://***@h/"
    )


def test_a_made_torch_is_a_wheel_of_its_cell(tmp_path: Path) -> None:
    release = FACTS.releases["2.9.1"]
    wheel = make_torch(release, release.builds["cu126"], local="+cu126")
    (tmp_path / wheel.filename).write_bytes(wheel.data)
    assert wheelhouse_torch(Cell(torch="2.9.1", cuda="cu126", wheelhouse=tmp_path))
