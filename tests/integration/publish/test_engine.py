"""`publish` of an image built by a real Docker Engine: users pull exactly the tested image."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import docker
import pytest
from docker.errors import ImageNotFound
from docker.models.images import Image

from tests.integration.needs import needs
from tests.integration.registries import RunningRegistry, running_registry
from tests.madeimages import Workshop, image_layers, made_lock, probe, report_cell
from torchproof._process import RunResult
from torchproof.cli import main
from torchproof.engines.docker import REPOSITORY as REPOSITORY_HERE
from torchproof.engines.engine import RunSpec
from torchproof.image.config import image_config
from torchproof.image.layers import make_plan
from torchproof.matrix.expand import load_matrix
from torchproof.model.lock import Lock
from torchproof.model.lock_file import lock_path, write_lock
from torchproof.model.results import Built, Host, Outcome, SubjectKind
from torchproof.probing.run_probes import RunOptions, open_trial
from torchproof.probing.script import PROBES, suite_hash
from torchproof.publish.reuse import open_ledger, pull_published_image, reuse_passes
from torchproof.registry import Registry

pytestmark = [needs("registry"), needs("docker")]
REPOSITORY = "ai/torch"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningRegistry]:
    monkeypatch.setenv("TORCHPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker-config"))
    with running_registry(tmp_path / "registry") as found:
        yield found


@pytest.fixture
def built() -> Iterator[tuple[docker.DockerClient, Image, Lock]]:
    client, lock = docker.from_env(), made_lock()
    image = build(client, lock)
    yield client, image, lock
    with suppress(ImageNotFound):
        client.images.remove(image.id, force=True)
    client.close()


def build(client: docker.DockerClient, lock: Lock) -> Image:
    labels = image_config(lock, make_plan(lock)).labels
    steps = ["FROM scratch"]
    steps += [f"LABEL {name}={json.dumps(text)}" for name, text in labels.items()]
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for number, data in enumerate(image_layers(lock)):
            steps.append(f"ADD layer{number}.tar /")
            info = tarfile.TarInfo(f"layer{number}.tar")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        text = "\n".join(steps).encode()
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    context.seek(0)
    image, _ = client.images.build(fileobj=context, custom_context=True, rm=True)
    return image


def test_an_engine_image_is_published_and_pulled_back_as_it_was_tested(
    registry: RunningRegistry,
    built: tuple[docker.DockerClient, Image, Lock],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client, image, lock = built
    shop = Workshop(tmp_path / "shop", registry.host)
    write_lock(lock, lock_path(lock.cell, shop.images))
    shop.report(report_cell(lock, f"torchproof:{lock.cell}", image.id))
    assert main(shop.arguments()) == 0
    reference = f"{registry.host}/{REPOSITORY}"
    with Registry(registry.host) as there:
        manifest = there.manifest(REPOSITORY, "2.9.1-cu128")
    assert manifest is not None
    assert manifest.json()["config"]["digest"] == image.id
    client.images.remove(image.id, force=True)
    pulled = client.images.pull(reference, tag="2.9.1-cu128")
    client.images.remove(f"{reference}:2.9.1-cu128")
    assert pulled.id == image.id
    capsys.readouterr()
    assert main(["verify", f"{reference}:2.9.1-cu128", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["digest"] == manifest.digest
    assert answer["evidence"][0]["statement"]["predicate"]["tested"] == image.id


def test_a_published_image_and_its_passes_are_reused(
    registry: RunningRegistry, built: tuple[docker.DockerClient, Image, Lock], tmp_path: Path
) -> None:
    client, image, lock = built
    shop = Workshop(tmp_path / "shop", registry.host)
    write_lock(lock, lock_path(lock.cell, shop.images))
    suite = suite_hash(PROBES)
    cell = report_cell(lock, f"torchproof:{lock.cell}", image.id, probes=[probe("linkage")])
    shop.report(cell | {"evidence": cell["evidence"] | {"suite_hash": suite}})
    assert main(shop.arguments()) == 0
    client.images.remove(image.id, force=True)
    ledger = open_ledger(load_matrix(shop.matrix))
    assert ledger is not None
    found = pull_published_image(ledger, lock)
    assert found is not None and found.config == image.id
    local = f"{REPOSITORY_HERE}:{lock.cell}"
    try:
        assert client.images.get(local).id == image.id
        trial = open_trial(CpuHost(), brought(lock, image), lock, folder=PROBES, reports=tmp_path)
        assert reuse_passes(ledger, trial, found) == ("linkage",)
        assert trial.store.load()["linkage"].outcome is Outcome.PASS
        assert reuse_passes(ledger, trial, found) == ()
        strict = RunOptions(thresholds={"linkage": {"x": 1.0}})
        other = open_trial(
            CpuHost(), brought(lock, image), lock, folder=PROBES, reports=tmp_path, options=strict
        )
        assert reuse_passes(ledger, other, found) == ()
    finally:
        client.images.remove(local)
    assert pull_published_image(ledger, made_lock(salt="other")) is None


class CpuHost:
    """A runner that only reports its host."""

    def host(self) -> Host:
        return Host(engine="docker 20.10.24")

    def run(self, built: Built, spec: RunSpec) -> RunResult:
        raise AssertionError("nothing is to be run")


def brought(lock: Lock, image: Image) -> Built:
    return Built(
        cell=lock.cell,
        subject=SubjectKind.IMAGE,
        ref=lock.cell,
        digest=str(image.id),
        size=1,
        layers=(),
        plan_hash="",
        seconds=0.0,
    )


def test_an_image_that_the_engine_lost_is_not_rebuilt(
    registry: RunningRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop, lock = Workshop(tmp_path / "shop", registry.host), made_lock()
    write_lock(lock, lock_path(lock.cell, shop.images))
    shop.report(report_cell(lock, "torchproof:gone", "sha256:" + "4" * 64))
    assert main(shop.arguments()) == 1
    assert "publish never builds" in capsys.readouterr().err
    with Registry(registry.host) as there:
        assert there.tags(REPOSITORY) == ()
