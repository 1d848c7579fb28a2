from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchproof.errors import InputError
from torchproof.upstream.gpus import Forward, best_code, gpu_table

TABLE = gpu_table()


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("A100", "A100"),
        ("a100", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 NVL", "H100"),
        ("NVIDIA H200", "H200"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090"),
        ("RTX3090", "RTX 3090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server Edition"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("Orin (nvgpu)", "Jetson Orin"),
    ],
)
def test_a_model_is_found_by_the_names_users_and_nvml_give_it(text: str, model: str) -> None:
    assert TABLE.find(text).name == model


@pytest.mark.parametrize("text", ["sm_90", "SM_90", "sm90", "90", "9.0"])
def test_an_architecture_is_a_gpu_too(text: str) -> None:
    assert TABLE.find(text).arch.id == "sm_90"
    assert TABLE.find(text).forward is Forward.UNKNOWN


@pytest.mark.parametrize(
    ("text", "hint"),
    [("H1O0", "H100"), ("4090", "RTX 4090"), ("A1000", "A100"), ("A100 5", "A100")],
)
def test_an_unknown_model_asks_did_you_mean(text: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        TABLE.find(text)
    assert "did you mean" in caught.value.fix
    assert hint in caught.value.fix


@pytest.mark.parametrize("text", ["sm_91", "", "  ", "sm_9", "🦆"])
def test_what_is_no_gpu_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        TABLE.find(text)


@given(st.text(max_size=40))
def test_any_text_gives_a_model_or_an_input_error(text: str) -> None:
    try:
        assert TABLE.find(text).arch.id in TABLE.architectures
    except InputError as error:
        assert error.fix


@pytest.mark.parametrize(
    ("archs", "gpu", "cuda", "entry"),
    [
        (("sm_80",), "A100", "12.8", "sm_80"),
        (("sm_80", "sm_86"), "L40S", "12.8", "sm_86"),
        (("sm_86",), "A100", "12.8", None),
        (("sm_90",), "B200", "12.8", None),
        (("sm_90", "compute_90"), "B200", "12.8", "compute_90"),
        (("sm_90", "compute_80", "compute_90"), "B200", "12.8", "compute_90"),
        (("sm_80", "compute_86"), "L40S", "12.8", "sm_80"),
        (("compute_120",), "H100", "12.8", None),
        (("sm_90a",), "H100", "12.8", "sm_90a"),
        (("compute_90a",), "B200", "12.8", None),
        (("sm_100a",), "B300", "12.9", None),
        (("sm_100f",), "B300", "12.9", "sm_100f"),
        (("sm_100f",), "RTX 5090", "12.9", None),
        (("compute_100f",), "RTX 5090", "12.9", None),
        (("compute_100",), "RTX 5090", "12.9", "compute_100"),
        (("sm_100",), "B300", "12.9", "sm_100"),
        (("sm_120",), "GB10", "13.0", "sm_120"),
        (("sm_121",), "RTX 5090", "13.0", None),
        (("sm_75",), "V100", "13.0", None),
        (("sm_80",), "Jetson Orin", "12.8", None),
        (("sm_80",), "Jetson Orin", "13.2", "sm_80"),
        (("sm_87",), "Jetson Orin", "12.8", "sm_87"),
        (("sm_87",), "RTX 3090", "12.8", None),
        (("sm_87",), "L40S", "13.2", None),
        (("sm_101",), "Jetson Thor", "12.9", "sm_101"),
        (("sm_100",), "Jetson Thor", "13.0", None),
        (("nonsense", "sm_"), "A100", "12.8", None),
    ],
)
def test_device_code_runs_by_the_rules_of_the_programming_guide(
    archs: tuple[str, ...], gpu: str, cuda: str, entry: str | None
) -> None:
    code = best_code(archs, TABLE.find(gpu).arch, cuda=cuda)
    assert (code.entry if code else None) == entry


def test_every_kind_of_gpu_says_whether_forward_compatibility_is_allowed() -> None:
    assert TABLE.find("A100").forward is Forward.YES
    assert TABLE.find("RTX 4090").forward is Forward.NO
    assert TABLE.find("RTX A6000").forward is Forward.SOME
    assert TABLE.find("Orin").forward is Forward.YES
