"""The same engine over Podman's Docker-compatible socket."""

from __future__ import annotations

from tests.integration.fixtures_engine import Bench
from tests.integration.needs import needs
from torchproof.engines.docker import DockerEngine
from torchproof.engines.engine import RunSpec

pytestmark = [needs("podman"), needs("bootstrap"), needs("network")]


def test_podman_builds_finds_and_runs_a_cell(podman_engine: DockerEngine, bench: Bench) -> None:
    lock = bench.lock()
    assert podman_engine.host().engine.startswith("podman ")
    built = bench.build(podman_engine, lock)
    assert [layer.name for layer in built.layers] == [
        "base",
        "python",
        "cuda",
        "cudnn",
        "torch",
        "nccl",
        "config",
    ]
    found = podman_engine.find(lock)
    assert found is not None
    assert (found.digest, found.layers) == (built.digest, built.layers)
    script = "import os, torch; os.makedirs(os.environ['TRITON_CACHE_DIR']); print(os.getuid())"
    spec = RunSpec(command=["python", "-c", script], user="1000700000:0")
    done = podman_engine.run(built, spec)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "1000700000\n", "")


def test_podman_shares_all_layers_below_an_nccl_override(
    podman_engine: DockerEngine, bench: Bench
) -> None:
    plain = bench.build(podman_engine, bench.lock())
    other = bench.build(podman_engine, bench.lock("-nccl2.30.7", nccl="2.30.7"))
    below = [layer.name for layer in plain.layers].index("nccl")
    assert plain.layers[:below] == other.layers[:below]


def test_podman_ends_a_command_that_hangs(podman_engine: DockerEngine, bench: Bench) -> None:
    built = bench.build(podman_engine, bench.lock())
    done = podman_engine.run(built, RunSpec(command=["sleep", "60"], timeout=3))
    assert done.exit_code is None
    assert done.seconds < 20
