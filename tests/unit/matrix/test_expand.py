from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchproof.errors import InputError
from torchproof.matrix.checks import check_names
from torchproof.matrix.expand import Request, expand, load_matrix, match_ids, parse_matrix, select
from torchproof.matrix.schema import Probes
from torchproof.upstream.facts import load_facts

FACTS = load_facts()
ROOT = Path(__file__).parents[3]


def _expand(folder: Path, text: str) -> tuple[Request, ...]:
    file = folder / "matrix.yaml"
    file.write_text(text, encoding="utf-8")
    return expand(load_matrix(file), FACTS)


def _fault(folder: Path, text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        _expand(folder, text)
    return caught.value


def test_the_default_matrix_is_ten_cells_with_the_requested_four() -> None:
    ids = [request.id for request in expand(load_matrix(ROOT / "matrix.yaml"), FACTS)]
    assert len(ids) == 10
    assert {
        f"{torch}-{cuda}-py311" for torch in ("2.7.1", "2.9.1") for cuda in ("cu118", "cu121")
    } <= set(ids)


def test_the_example_has_one_override_cell() -> None:
    requests = expand(load_matrix(ROOT / "examples" / "nccl-override.yaml"), FACTS)
    assert [request.id for request in requests] == [
        "2.9.1-cu128-py311",
        "2.9.1-cu128-py311-nccl2.30.7",
    ]


def test_a_minor_version_means_its_newest_patch(tmp_path: Path) -> None:
    (request,) = _expand(tmp_path, "torch: 2.10\ncuda: cu128\n")
    assert request.cell.torch == "2.10.0"


def test_a_newer_patch_that_an_index_has_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text("torch: '2.9'\ncuda: cu128\n", encoding="utf-8")
    (request,) = expand(load_matrix(file), FACTS, {"2.9.2", "2.9.10"})
    assert request.cell.torch == "2.9.10"


def test_axes_multiply_and_cells_are_added(tmp_path: Path) -> None:
    requests = _expand(
        tmp_path,
        "torch: ['2.9']\ncuda: [cu126, cu128]\npython: ['3.11', '3.12']\n"
        "platform: [linux/amd64, linux/arm64]\n"
        "cells:\n  - {torch: '2.9', cuda: cu128, python: '3.11', platform: linux/amd64, "
        "cudnn: 9.13.0.50}\n",
    )
    assert len(requests) == 9
    assert requests[-1].id == "2.9.1-cu128-py311-cudnn9.13.0.50"
    assert requests[-1].where.endswith("matrix.yaml:6")


def test_a_cell_takes_options_of_its_own(tmp_path: Path) -> None:
    plain, own = _expand(
        tmp_path,
        "torch: '2.9'\ncuda: cu128\noptions: {rdma: true}\n"
        "cells:\n  - {torch: '2.9', cuda: cu128, nccl: 2.30.7, rdma: false, compile: false, "
        "extras: [numpy], gpus: [sm_90, sm_80]}\n",
    )
    assert (plain.cell.rdma, plain.cell.compile) == (True, True)
    assert "gcc" in plain.cell.base.packages
    assert (own.cell.rdma, own.cell.compile, own.cell.extras) == (False, False, ("numpy",))
    assert "gcc" not in own.cell.base.packages
    assert own.cell.gpus == ("sm_80", "sm_90")


def test_an_excluded_cell_keeps_the_reason_of_the_user(tmp_path: Path) -> None:
    requests = _expand(
        tmp_path,
        "torch: ['2.7', '2.9']\ncuda: [cu126, cu128]\n"
        "exclude:\n  - {torch: '2.7', cuda: cu126, reason: no such machines}\n",
    )
    assert [request.excluded for request in requests] == ["no such machines", "", "", ""]


@pytest.mark.parametrize(
    "url",
    ["http://[x/simple", "http://a b/simple", "http://a:99999/simple", "http://a:xx/", "https://"],
)
def test_an_index_that_no_program_could_ask_is_refused_with_its_line(
    url: str, tmp_path: Path
) -> None:
    text = f"torch: ['2.9']\ncuda: [cu128]\nindexes:\n  pypi: '{url}'\n"
    told = str(_fault(tmp_path, text))
    assert "is not the URL of an index" in told
    assert "matrix.yaml:4" in told


@pytest.mark.parametrize(
    ("text", "line", "says", "fix"),
    [
        ("torch: ['2.9']\ncuda: [cu128, cu1288]\n", 2, "cu1288", "cu128"),
        ("torch: ['2.9']\ncuda:\n  - cu126\n  - cu127\n", 4, "no CUDA build named cu127", "cu128"),
        ("torch: ['2.9']\ncuda: ['12.8']\n", 2, "12.8", "`cu128`"),
        ("torch: ['2.9']\ncuda: [cuda12.6]\n", 2, "cuda12.6", "`cu126`"),
        ("torch: ['2.7.9']\ncuda: [cu118]\n", 1, "no torch 2.7.9", "2.7.1"),
        ("torch:\n  - '2.9'\n  - '1.13'\ncuda: [cu118]\n", 3, "no torch 1.13", "2."),
        ("cells:\n  - torch: '2.99'\n    cuda: cu128\n", 2, "no torch 2.99", "2.9"),
        ("torch: ['2.9', '2.9.1']\ncuda: [cu128]\n", 1, "is listed twice", "remove"),
        ("torch: '2.9'\ncuda: cu128\ncells:\n  - {torch: 2.9.1, cuda: cu128}\n", 4, "twice", ""),
        ("torch: ['2.9']\ncuda: [cu128]\nexclude:\n  - {cuda: cu128}\n", 4, "`reason`", "say why"),
        (
            "torch: ['2.9']\ncuda: [cu128]\nexclude:\n  - {cuda: cu128, reason: ''}\n",
            4,
            "`reason` is empty",
            "say why",
        ),
        ("torch: ['2.9']\ncuda: [cu128]\nexclude:\n  - {reason: x}\n", 4, "what to exclude", ""),
        (
            "torch: ['2.9']\ncuda: [cu128]\nexclude:\n  - {cuda: cu118, reason: x}\n",
            4,
            "matches no cell",
            "",
        ),
        ("torch: ['2.9']\ncudaa: [cu128]\n", 2, "unknown key `cudaa`", "`cuda`"),
        ("torch: ['2.9']\ncuda: [cu128]\ncells:\n  - {toch: '2.9'}\n", 4, "toch", "torch"),
        ("torch: ['2.9']\ncuda: [cu128]\nprobes:\n  requird: [a]\n", 4, "requird", "required"),
        ("torch: ['2.9']\n", 1, "together", ""),
        ("python: '3.11'\n", 1, "no cells", ""),
        ("- torch\n", 1, "mapping", ""),
        ("just text\n", 1, "mapping", ""),
        ("", 1, "mapping", ""),
        ("torch: ['2.9']\ncuda: [cu128]\nbase: {}\n", 3, "either `image`", ""),
        (
            "torch: ['2.9']\ncuda: [cu128]\nbase: {image: 'debian:12'}\n",
            3,
            "pinned by digest",
            "digest",
        ),
        (
            "torch: ['2.9']\ncuda: [cu128]\nbase: {bootstrap: debian/bookwurm}\n",
            3,
            "bookwurm",
            "debian/bookworm",
        ),
        ("torch: ['2.9']\ncuda: [cu128]\npython: ['3.13t']\n", 3, "3.13t", ""),
        ("torch: ['2.9']\ncuda: [cu128]\nplatform: [windows]\n", 3, "windows", "linux/amd64"),
        (
            "torch: ['2.9']\ncuda: [cu128]\noptions: {extras: ['not a ! name']}\n",
            3,
            "not a valid req",
            "",
        ),
        ("torch: ['2.9']\ncuda: [cu128]\noptions: {extras: [torch]}\n", 1, "extra", "remove"),
        ("torch: ['2.9']\ncuda: [cu128]\noptions: {compile: maybe}\n", 3, "true or false", "true"),
        (
            "torch: ['2.9']\ncuda: [cu128]\nprobes: {required: [a], optional: [a]}\n",
            3,
            "both required and optional",
            "",
        ),
        ("torch: ['2.9']\ncuda: [cu128]\nindexes: {pipy: 'https://x/'}\n", 3, "pipy", "`pypi`"),
        ("torch: ['2.9']\ncuda: [cu128]\nindexes:\n  pypi: /simple\n", 4, "not the URL", "https"),
        (
            "torch: ['2.9']\ncuda: [cu128]\nhosts:\n  - {name: a, driver: '570.1', gpu: H1000}\n",
            4,
            "H1000",
            "H100",
        ),
        (
            "cells:\n  - {torch: '2.9', cuda: cu128, gpus: [H100]}\n",
            2,
            "H100",
            "",
        ),
    ],
)
def test_a_fault_names_line_and_remedy(
    tmp_path: Path, text: str, line: int, says: str, fix: str
) -> None:
    error = _fault(tmp_path, text)
    assert error.where == f"{tmp_path / 'matrix.yaml'}:{line}"
    assert says in error.message
    assert fix in str(error)
    assert int(error.exit_code) == 2


def test_all_faults_are_named_at_once(tmp_path: Path) -> None:
    error = _fault(tmp_path, "torch: ['2.9']\ncuda: [gpu]\nnonsense: 1\nhosts: [{name: x}]\n")
    for place in ("matrix.yaml:2", "matrix.yaml:3", "matrix.yaml:4"):
        assert place in str(error)


def test_an_unknown_cuda_is_possible_with_a_wheelhouse(tmp_path: Path) -> None:
    (request,) = _expand(tmp_path, "cells:\n  - {torch: 2.9.1, cuda: cu127, wheelhouse: wheels}\n")
    assert request.cell.wheelhouse == (tmp_path / "wheels").resolve()


def test_only_takes_a_glob_or_the_beginning_of_an_id() -> None:
    ids = ["2.7.1-cu126-py311", "2.9.1-cu128-py311", "2.9.1-cu128-py311-nccl2.30.7"]
    assert match_ids(ids, None) == tuple(ids)
    assert match_ids(ids, "*cu126*") == (ids[0],)
    assert match_ids(ids, "2.9.1-cu128-py311") == (ids[1],)
    assert match_ids(ids, "2.9.1-cu128") == (ids[1], ids[2])


def test_only_without_match_suggests_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        match_ids(["2.7.1-cu126-py311"], "2.7.1-cu128-py311")
    assert "2.7.1-cu126-py311" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "line", "fix"),
    [
        ("probes: {required: [verions]}", 3, "versions"),
        ("probes:\n  optional:\n    - torchrunn", 5, "torchrun"),
        ("probes: {thresholds: {torchrunn: {x: 1}}}", 3, "torchrun"),
        ("audit: {required: [pin.hashes]}", 3, "pins.hash"),
        ("audit:\n  ignore:\n    - {rule: 'pinz.*', reason: x}", 5, ""),
        ("publish: {accept_unproven: [ddp_stp]}", 3, "ddp_step"),
    ],
)
def test_a_probe_or_rule_that_there_is_not_is_named(text: str, line: int, fix: str) -> None:
    matrix = parse_matrix(f"torch: '2.9'\ncuda: cu128\n{text}\n")
    with pytest.raises(InputError) as caught:
        check_names(matrix, probes=Probes().required, rules=["pins.hash", "link.nccl"])
    assert caught.value.where == f"matrix.yaml:{line}"
    assert fix in caught.value.fix


def test_rules_can_be_named_by_pattern() -> None:
    matrix = parse_matrix("torch: '2.9'\ncuda: cu128\naudit: {required: ['pins.*']}\n")
    check_names(matrix, probes=matrix.probes.required, rules=["pins.hash"])


def test_select_keeps_the_order_of_the_file(tmp_path: Path) -> None:
    requests = _expand(tmp_path, "torch: ['2.9', '2.7']\ncuda: [cu128, cu126]\n")
    assert [item.id for item in select(requests, "*cu126*")] == [
        "2.9.1-cu126-py311",
        "2.7.1-cu126-py311",
    ]


_KEYS = st.sampled_from(["torch", "cuda", "python", "cells", "exclude", "base", "probes", "x"])
_LEAVES = st.sampled_from(["2.9", "cu128", "3.11", "", "null", "{}", "[]", "[1, {}]", "{torch: 1}"])


@settings(deadline=None)
@given(st.dictionaries(_KEYS, _LEAVES, max_size=5))
def test_any_content_is_expanded_or_refused_with_a_place(content: dict[str, str]) -> None:
    text = "".join(f"{key}: {value}\n" for key, value in content.items())
    try:
        assert expand(parse_matrix(text, Path("matrix.yaml")), FACTS)
    except InputError as error:
        assert error.where.startswith("matrix.yaml:")
