"""Real wheels of several gigabytes: the committed cells as images that share layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.needs import needs
from torchproof.engines.build_cells import build_cells, shared
from torchproof.engines.docker import DockerEngine
from torchproof.engines.engine import RunSpec
from torchproof.model.lock_file import read_lock

pytestmark = [
    needs("docker"),
    needs("bootstrap"),
    needs("network"),
    pytest.mark.real_torch,
    pytest.mark.largest,
]

IMAGES = Path(__file__).parents[3] / "images"
SCRIPT = """
import ctypes, json, os, torch
place = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "nvidia/nccl/lib")
version = ctypes.c_int()
ctypes.CDLL(os.path.join(place, "libnccl.so.2")).ncclGetVersion(ctypes.byref(version))
print(json.dumps([torch.__version__, torch.version.cuda, version.value]))
"""


def test_the_nccl_override_shares_every_layer_below_nccl(
    room: None, real_engine: DockerEngine, tmp_path: Path
) -> None:
    names = ("2.9.1-cu128-py311", "2.9.1-cu128-py311-nccl2.30.7")
    locks = [read_lock(IMAGES / name / "lock.yaml") for name in names]
    results = build_cells(real_engine, locks, reports=tmp_path, images=IMAGES)
    plain, other = (result.built for result in results)
    assert plain is not None, results[0].error
    assert other is not None, results[1].error
    below = [layer.name for layer in plain.layers].index("nccl")
    assert plain.layers[:below] == other.layers[:below]
    assert shared([plain, other]).saved > 6e9
    for built, nccl in ((plain, 22705), (other, 23007)):
        done = real_engine.run(built, RunSpec(command=["python", "-W", "ignore", "-c", SCRIPT]))
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout) == ["2.9.1+cu128", "12.8", nccl]
