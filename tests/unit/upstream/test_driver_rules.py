from __future__ import annotations

from dataclasses import dataclass

import pytest

from torchproof.errors import InputError
from torchproof.upstream.driver_rules import host_table, will_it_run
from torchproof.upstream.facts import load_facts
from torchproof.upstream.gpus import gpu_table
from torchproof.upstream.host_fit import Fit, HostAnswer, HostRule, ImageNeeds, parse_driver

FACTS = load_facts()
TABLE = gpu_table()
CU126 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CU128 = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
CU130 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")


def ask(
    cuda: str,
    archs: tuple[str, ...],
    driver: str | None,
    gpu: str | None,
    platform: str = "linux/amd64",
) -> HostAnswer:
    return will_it_run(
        ImageNeeds(cell="c", cuda=cuda, archs=archs, platform=platform),
        parse_driver(driver) if driver else None,
        TABLE.find(gpu) if gpu else None,
        FACTS,
    )


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("550.90", (550, 90)),
        ("535.104.05", (535, 104, 5)),
        ("R550", (550,)),
        ("r550", (550,)),
        ("550", (550,)),
        (" 570.124.06\n", (570, 124, 6)),
    ],
)
def test_a_driver_is_a_version_or_a_branch(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_driver(text).numbers == numbers


@pytest.mark.parametrize(
    "text", ["", "abc", "550.", "550.x", "-550.1", "550.90.07.1", "12.8", "v550.90", "550,90", "R"]
)
def test_what_is_no_driver_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match="not a driver version") as caught:
        parse_driver(text)
    assert "535.104.05" in caught.value.fix


def test_the_toolkits_own_driver_runs_it() -> None:
    answer = ask("cu126", CU126, "560.35.05", "A100")
    assert (answer.fit, answer.rule) == (Fit.YES, HostRule.TOOLKIT_DRIVER)
    assert "560.28.03" in answer.reason
    assert "sm_80" in answer.reason


def test_a_newer_driver_runs_an_older_toolkit() -> None:
    assert ask("cu118", CU126, "580.65.06", "A100").fit is Fit.YES


def test_an_older_driver_of_the_same_major_runs_by_minor_version_compatibility() -> None:
    answer = ask("cu128", CU128, "535.104.05", "A100")
    assert (answer.fit, answer.rule, answer.runs) == (Fit.MINOR, HostRule.MINOR_VERSION, True)
    assert "525.60.13" in answer.reason


def test_a_driver_below_the_floor_needs_forward_compatibility_on_a_data_center_gpu() -> None:
    answer = ask("cu130", CU130, "535.104.05", "A100")
    assert (answer.fit, answer.runs) == (Fit.FORWARD, False)
    assert "cuda-compat-13-0" in answer.reason
    assert answer.change[0] == "driver 580.65.06 or newer"


def test_a_geforce_may_not_use_forward_compatibility() -> None:
    answer = ask("cu130", CU130, "535.104.05", "RTX 3090")
    assert (answer.fit, answer.rule) == (Fit.NO, HostRule.FORWARD)
    assert "GeForce" in answer.reason


def test_the_oldest_release_of_a_branch_is_assumed() -> None:
    assert ask("cu126", CU126, "R525", "A100").fit is Fit.FORWARD
    assert ask("cu126", CU126, "R530", "A100").fit is Fit.MINOR


def test_no_device_code_for_the_gpu_is_no_whatever_the_driver() -> None:
    answer = ask("cu130", CU130, "580.65.06", "V100")
    assert (answer.fit, answer.rule) == (Fit.NO, HostRule.DEVICE_CODE)
    assert "sm_75" in answer.reason
    assert "no PTX" in answer.reason
    assert answer.change == ("a build with code for sm_70",)


def test_ptx_alone_needs_the_toolkits_driver() -> None:
    archs = ("sm_80", "compute_80")
    assert ask("cu126", archs, "560.35.05", "H100").fit is Fit.YES
    assert ask("cu126", archs, "535.104.05", "H100").fit is Fit.FORWARD
    answer = ask("cu126", archs, "535.104.05", "RTX 5090")
    assert answer.fit is Fit.NO
    geforce = ask("cu126", ("sm_80", "compute_75"), "535.104.05", "RTX 2080")
    assert (geforce.fit, geforce.rule) == (Fit.NO, HostRule.PTX_COMPILER)
    assert "560.28.03" in geforce.change[0]


def test_a_driver_older_than_the_gpu_does_not_know_it() -> None:
    answer = ask("cu128", CU128, "535.104.05", "B200")
    assert (answer.fit, answer.rule) == (Fit.NO, HostRule.DRIVER_KNOWS_GPU)
    assert answer.change == ("driver 570.26 or newer",)


def test_a_driver_newer_than_the_last_branch_dropped_the_gpu() -> None:
    answer = ask("cu126", CU126, "590.44.01", "V100")
    assert (answer.fit, answer.rule) == (Fit.NO, HostRule.DRIVER_KNOWS_GPU)
    assert "R580" in answer.change[0]


def test_an_arm_superchip_needs_an_arm64_image() -> None:
    assert ask("cu128", CU128, "570.26", "GH200").rule is HostRule.PLATFORM
    assert ask("cu128", CU128, "570.26", "GH200", "linux/arm64").fit is Fit.YES


def test_a_host_that_declares_nothing_is_not_judged() -> None:
    answer = ask("cu128", CU128, None, None)
    assert (answer.fit, answer.runs) == (Fit.UNKNOWN, False)


def test_a_driver_alone_is_judged_by_the_driver() -> None:
    assert ask("cu128", CU128, "570.26", None).fit is Fit.YES
    assert ask("cu130", CU130, "535.104.05", None).fit is Fit.FORWARD


def test_unknown_device_code_is_said_and_not_taken_for_none() -> None:
    answer = ask("cu128", (), "570.26", "A100")
    assert answer.fit is Fit.YES
    assert "is unknown" in answer.reason


@dataclass
class Declared:
    name: str
    driver: str | None
    gpu: str | None


def test_the_table_answers_every_image_on_every_host_in_order() -> None:
    images = [
        ImageNeeds(cell="2.9.1-cu128-py311", cuda="cu128", archs=CU128),
        ImageNeeds(cell="2.9.1-cu130-py311", cuda="cu130", archs=CU130),
    ]
    hosts = [Declared("old", "535.104.05", "A100"), Declared("new", "580.65.06", "H100")]
    table = host_table(images, hosts, FACTS, TABLE)
    assert [[(name, str(answer.fit)) for name, answer in row.answers] for row in table] == [
        [("old", "by minor-version compatibility"), ("new", "yes")],
        [("old", "needs forward compatibility"), ("new", "yes")],
    ]
