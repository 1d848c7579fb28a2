from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchproof.cli import main
from torchproof.errors import InputError
from torchproof.model.results import State
from torchproof.pick.rank import CandidateCell, Picked, PickRequest, check_python, check_torch, pick
from torchproof.upstream.facts import load_facts
from torchproof.upstream.gpus import gpu_table
from torchproof.upstream.host_fit import Fit, ImageNeeds, parse_driver

FACTS = load_facts()
MATRIX = """\
torch: ["2.7", "2.9"]
cuda: [cu118, cu126, cu128, cu130]
python: ["3.11"]
"""


def cell(
    torch: str, cuda: str, state: State = State.VERIFIED, python: str = "3.11"
) -> CandidateCell:
    build = FACTS.releases[torch].builds.get(cuda)
    return CandidateCell(
        needs=ImageNeeds(
            cell=f"{torch}-{cuda}-py{python.replace('.', '')}",
            cuda=cuda,
            archs=build.archs if build else (),
        ),
        torch=torch,
        python=python,
        state=state,
        reason="because",
    )


def ask(
    cells: list[CandidateCell],
    driver: str = "580.65.06",
    gpu: str = "A100",
    torch: str = "",
    python: str = "",
) -> Picked:
    gpus = tuple(gpu_table().find(name) for name in gpu.split(","))
    request = PickRequest(torch=torch, driver=parse_driver(driver), gpus=gpus, python=python)
    return pick(cells, request, FACTS)


def best(picked: Picked) -> str | None:
    return picked.best.candidate.cell if picked.best else None


def test_the_newest_torch_that_runs_natively_is_picked() -> None:
    cells = [cell("2.7.1", "cu126"), cell("2.9.1", "cu126"), cell("2.9.1", "cu128")]
    assert best(ask(cells)) == "2.9.1-cu128-py311"


def test_verified_goes_before_a_newer_torch_that_is_not() -> None:
    cells = [cell("2.7.1", "cu126"), cell("2.9.1", "cu128", State.UNPROVEN)]
    assert best(ask(cells)) == "2.7.1-cu126-py311"
    assert best(ask(cells, torch="2.9")) == "2.9.1-cu128-py311"


def test_a_native_driver_goes_before_minor_version_compatibility() -> None:
    cells = [cell("2.7.1", "cu118"), cell("2.9.1", "cu128")]
    assert best(ask(cells, driver="535.104.05")) == "2.7.1-cu118-py311"


def test_by_minor_version_compatibility_the_nearer_cuda_is_picked() -> None:
    cells = [cell("2.9.1", "cu128"), cell("2.9.1", "cu126")]
    picked = ask(cells, driver="535.104.05")
    assert best(picked) == "2.9.1-cu126-py311"
    assert picked.best is not None
    assert picked.best.answer is not None
    assert picked.best.answer.fit is Fit.MINOR


def test_every_gpu_must_be_served() -> None:
    cells = [cell("2.9.1", "cu126"), cell("2.9.1", "cu130")]
    assert best(ask(cells, gpu="V100,H100", driver="570.26")) == "2.9.1-cu126-py311"
    assert best(ask(cells, gpu="V100,B200")) is None


@pytest.mark.parametrize("state", [State.FAILED, State.BLOCKED, State.UNAVAILABLE, State.EXCLUDED])
def test_a_cell_without_an_image_is_never_the_answer(state: State) -> None:
    picked = ask([cell("2.9.1", "cu128", state)])
    assert picked.best is None
    assert str(state) in picked.considered[0].against


def test_forward_compatibility_is_not_a_fit_but_is_named_with_a_newer_driver() -> None:
    picked = ask([cell("2.9.1", "cu130")], driver="535.104.05")
    assert picked.best is None
    assert any("580.65.06" in line for line in picked.change)
    assert any("cuda-compat-13-0" in line for line in picked.change)
    assert any("torch 2.9.1 for cu126" in line for line in picked.change)


def test_another_torch_in_the_matrix_is_named() -> None:
    picked = ask([cell("2.7.1", "cu118"), cell("2.9.1", "cu126")], driver="470.10", torch="2.9")
    assert picked.best is None
    assert any("2.7.1-cu118-py311" in line for line in picked.change)


def test_for_an_unsupported_gpu_the_newest_torch_that_supports_it_is_named() -> None:
    picked = ask([cell("2.9.1", "cu126")], gpu="K80", driver="535.104.05")
    assert picked.best is None
    assert picked.change == ("the newest torch with code for K80 (sm_37) is 2.7.1 for cu118",)


def test_python_narrows_the_choice() -> None:
    cells = [cell("2.9.1", "cu128"), cell("2.7.1", "cu126", python="3.12")]
    assert best(ask(cells, python="3.12")) == "2.7.1-cu126-py312"
    assert "Python 3.11" in ask(cells, python="3.12").considered[0].against


def test_a_version_is_matched_by_its_parts() -> None:
    cells = [cell("2.10.0", "cu128"), cell("2.1.0", "cu121")]
    assert best(ask(cells, torch="2.1")) == "2.1.0-cu121-py311"


@pytest.mark.parametrize("text", ["", "x", "2.9.1+cu128", "2.9.*", ">=2", "2..9", "2.9.1.0"])
def test_an_invalid_torch_version_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        check_torch(text)


@pytest.mark.parametrize(
    ("text", "version"), [("3.11", "3.11"), ("py311", "3.11"), ("cp312", "3.12"), ("", "")]
)
def test_the_usual_spellings_of_a_python_version_are_accepted(text: str, version: str) -> None:
    assert check_python(text) == version


@pytest.mark.parametrize("text", ["2.7", "three", "3", "3.x"])
def test_an_invalid_python_version_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        check_python(text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_verb_prints_the_tag_and_its_verdict(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pick", "--torch", "2.9", "--driver", "535.104.05", "--gpu", "A100"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "2.9.1-cu126-py311"
    assert "verdict: planned" in out


def test_the_verb_exits_1_with_reasons_as_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["pick", "--torch", "2.9", "--driver", "470.10", "--gpu", "NVIDIA A100-SXM4-80GB"]
    assert main([*argv, "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["tag"] is None
    assert data["change"]
    assert {item["id"] for item in data["considered"]} >= {"2.9.1-cu128-py311"}
    assert all(item["reason"] for item in data["considered"])


@pytest.mark.parametrize(
    "argv",
    [
        ["--torch", "2.9", "--driver", "550.90", "--gpu", "H1O0"],
        ["--torch", "2.9", "--driver", "new", "--gpu", "H100"],
        ["--torch", "cu128", "--driver", "550.90", "--gpu", "H100"],
        ["--torch", "2.9", "--driver", "550.90"],
        ["--torch", "2.9", "--driver", "550.90", "--gpu", ""],
    ],
)
def test_the_verb_exits_2_on_wrong_input(folder: Path, argv: list[str]) -> None:
    assert main(["pick", *argv]) == 2
