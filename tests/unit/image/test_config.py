"""What an image says of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.image.test_dockerfile import LOCK
from torchproof.image.config import LAYERS_LABEL, PLAN_LABEL, image_config, nvidia_requirement
from torchproof.image.layers import make_plan


@pytest.mark.parametrize(
    ("cuda", "wanted"), [("11.8", "cuda>=11.0"), ("12.8", "cuda>=12.0"), ("13.0", "cuda>=13.0")]
)
def test_every_driver_of_the_same_major_is_let_in(cuda: str, wanted: str) -> None:
    assert nvidia_requirement(cuda) == wanted


def test_labels_name_the_versions_the_lock_and_the_plan() -> None:
    labels = image_config(LOCK, make_plan(LOCK)).labels
    plan = make_plan(LOCK)
    assert labels[PLAN_LABEL] == plan.hash
    assert labels["torchproof.lock"] == LOCK.digest
    assert labels[LAYERS_LABEL] == "base,python,cuda,cudnn,torch,nccl,config"
    wanted = {
        "torch": "2.9.1",
        "cuda": "12.8",
        "cudnn": "9.10.2.21",
        "nccl": "2.27.5",
        "python": "3.11",
        "archs": "sm_80,sm_90",
        "driver-floor": "525.60.13",
    }
    assert {name: labels[f"torchproof.{name}"] for name in wanted} == wanted


def test_equal_locks_give_equal_configurations() -> None:
    assert image_config(LOCK, make_plan(LOCK)) == image_config(replace(LOCK), make_plan(LOCK))


def test_the_user_is_a_number_and_not_root() -> None:
    user, _, group = image_config(LOCK, make_plan(LOCK)).user.partition(":")
    assert user.isdigit()
    assert user != "0"
    assert group == "0"


def test_every_cache_is_below_a_folder_that_the_image_opens() -> None:
    config = image_config(LOCK, make_plan(LOCK))
    opened = [directory.path for directory in config.directories if directory.mode & 0o020]
    for name, value in config.env.items():
        if "CACHE" in name or name in ("HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR"):
            assert any(value == path or value.startswith(f"{path}/") for path in opened), name


def test_no_site_packages_of_a_user_and_no_library_path() -> None:
    env = image_config(LOCK, make_plan(LOCK)).env
    assert env["PYTHONNOUSERSITE"] == "1"
    assert "LD_LIBRARY_PATH" not in env
    assert env["PATH"].startswith("/opt/venv/bin:")
