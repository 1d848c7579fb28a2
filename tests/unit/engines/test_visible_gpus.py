"""A scheduler's choice of GPUs holds for all that runs on the machine itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchproof.engines import venv
from torchproof.engines.venv import VenvEngine
from torchproof.index.indexes import Indexes
from torchproof.model.results import Gpu, Host
from torchproof.probing import host_python as hostpython
from torchproof.probing.host_python import HostPython

GPUS = tuple(Gpu(model="NVIDIA H200", arch="sm_90", uuid=f"GPU-{n}") for n in range(4))


@pytest.fixture(params=["venv", "host"])
def runner(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> VenvEngine | HostPython:
    """Both runners on a machine with four GPUs."""
    for module in (venv, hostpython):
        monkeypatch.setattr(module, "read_gpus", lambda: ("570.86", GPUS))
    if request.param == "host":
        return HostPython()
    return VenvEngine(tmp_path, Indexes(pytorch="", urls={}))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, GPUS),
        ("2,0", (GPUS[2], GPUS[0])),
        ("GPU-3", (GPUS[3],)),
        ("", ()),
        ("1,9,0", (GPUS[1],)),
    ],
)
def test_a_runner_has_the_gpus_that_the_scheduler_gave(
    runner: VenvEngine | HostPython,
    setting: str | None,
    expected: tuple[Gpu, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if setting is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    host: Host = runner.host()
    assert host.gpus == expected
    assert host.driver == "570.86"
