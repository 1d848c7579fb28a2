"""`publish` while the registry misbehaves, or another publisher is at work."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faultproxy import FAULTS, Proxy, fault_proxy
from tests.integration.needs import needs
from tests.integration.publish.test_publish import write_keys
from tests.integration.registries import (
    PASSWORD,
    USER,
    RunningRegistry,
    docker_config,
    running_registry,
)
from tests.madeimages import Workshop, made_lock
from torchproof.cli import main
from torchproof.errors import TorchproofError
from torchproof.publish.attestation.signing import load_signing_key
from torchproof.publish.publisher import Target, publish
from torchproof.publish.tags import is_moving, parse_immutable
from torchproof.registry import Registry
from torchproof.registry.transport import Patience

pytestmark = needs("registry")
REPOSITORY = "ai/torch"
ALL_FAULTS = "TORCHPROOF_ALL_FAULTS"
"""Set it to try all faults at all requests (15 minutes); otherwise each request gets two."""
HASTY = Patience(attempts=3, first=0.01, longest=0.05)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHPROOF_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RunningRegistry]:
    with running_registry(tmp_path / "registry", auth=True) as found:
        yield found


@pytest.fixture
def proxy(
    registry: RunningRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Proxy]:
    with fault_proxy(registry.host) as found:
        folder = docker_config(tmp_path / "docker", found.host)
        config = json.loads((folder / "config.json").read_text())
        config["auths"][registry.host] = config["auths"][found.host]
        (folder / "config.json").write_text(json.dumps(config))
        monkeypatch.setenv("DOCKER_CONFIG", str(folder))
        yield found


class Publishing:
    """Publishes a workshop's report; `log` has every message."""

    def __init__(self, shop: Workshop, key: Path, repository: str, tmp_path: Path) -> None:
        self.shop = shop
        self.key = load_signing_key(key)
        self.repository = repository
        self.scratch = tmp_path / "scratch"
        self.log: list[str] = []
        self.patience = HASTY

    def run(self, host: str, report: object) -> bool:
        """Publish; return True if nothing went wrong."""
        from torchproof.report.models import ReportModel

        assert isinstance(report, ReportModel)
        with Registry(host, patience=self.patience, timeout=10) as client:
            target = Target(
                registry=client,
                repository=self.repository,
                scratch=self.scratch,
                images=self.shop.images,
                key=self.key,
                say=lambda cell, text: self.log.append(f"{cell}: {text}"),
            )
            try:
                outcome = publish(report, [cell.id for cell in report.cells], target)
            except TorchproofError as error:
                self.log.append(str(error))
                return False
            self.log += [str(error) for error in outcome.failed]
            return not outcome.failed


def assert_complete(host: str, repository: str) -> dict[str, str]:
    """Assert that every tag users pull names a complete image with evidence."""
    found = {}
    with Registry(host) as client:
        for tag in client.tags(repository):
            if not (is_moving(tag) or parse_immutable(tag)):
                continue
            manifest = client.manifest(repository, tag)
            assert manifest is not None, tag
            data = manifest.json()
            for blob in (data["config"], *data["layers"]):
                assert client.blob_size(repository, blob["digest"]) == blob["size"], tag
            kinds = {one.artifact_type for one in client.referrers(repository, manifest.digest)}
            assert "application/vnd.dsse.envelope.v1+json" in kinds, tag
            found[tag] = manifest.digest
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_request_leaves_no_half_published_tag(
    proxy: Proxy, registry: RunningRegistry, tmp_path: Path, fault: str
) -> None:
    shop, lock = Workshop(tmp_path / "shop", proxy.host), made_lock()
    report = shop.report(shop.cell(lock))
    key = write_keys(tmp_path / "keys")[0]
    quiet = Publishing(shop, key, f"{REPOSITORY}/quiet", tmp_path)
    proxy.disarm()
    assert quiet.run(proxy.host, report)
    requests = len(proxy.seen)
    assert requests > 30
    proxy.slow = 0.02
    # A repository for each request, so that all start from nothing.
    step = 1 if os.environ.get(ALL_FAULTS) else 4
    for number in range(FAULTS.index(fault) % step, requests, step):
        one = Publishing(shop, key, f"{REPOSITORY}/{fault.lower()}/n{number}", tmp_path)
        proxy.arm(fault, number)
        done = one.run(proxy.host, report)
        proxy.disarm()
        half = assert_complete(registry.host, one.repository)
        assert set(half.values()) <= {report.cells[0].image.digest}  # type: ignore[union-attr]
        assert done or one.run(proxy.host, report), one.log
        whole = assert_complete(registry.host, one.repository)
        assert {lock.cell, "2.9.1-cu128", "2.9-cu128", "latest-verified"} <= whole.keys()
        told = "\n".join(one.log)
        assert PASSWORD not in told and USER not in told


@pytest.mark.parametrize("fault", ["403", "cut"])
def test_the_next_run_finishes_after_a_registry_died(
    proxy: Proxy, registry: RunningRegistry, tmp_path: Path, fault: str
) -> None:
    shop = Workshop(tmp_path / "shop", proxy.host)
    cells = [shop.cell(made_lock("2.9.1"), salt="a"), shop.cell(made_lock("2.9.0"), salt="b")]
    report = shop.report(*cells)
    key = write_keys(tmp_path / "keys")[0]
    proxy.disarm()
    assert Publishing(shop, key, f"{REPOSITORY}/quiet", tmp_path).run(proxy.host, report)
    requests = len(proxy.seen)
    for number in range(3, requests, 29):
        one = Publishing(shop, key, f"{REPOSITORY}/n{number}", tmp_path)
        proxy.arm(fault, number, lasting=True)
        assert not one.run(proxy.host, report)
        proxy.disarm()
        assert_complete(registry.host, one.repository)
        assert one.run(proxy.host, report), one.log
        whole = assert_complete(registry.host, one.repository)
        assert whole["2.9-cu128"] == cells[0]["image"]["digest"]
        assert whole["2.9.0-cu128"] == cells[1]["image"]["digest"]


def publish_at_once(*runs: tuple[Publishing, object], host: str) -> list[bool]:
    start = threading.Barrier(len(runs))
    done = [False] * len(runs)

    def work(number: int, one: Publishing, report: object) -> None:
        one.patience = Patience(attempts=6, first=0.1, longest=2.0)
        start.wait()
        done[number] = one.run(host, report)

    threads = [
        threading.Thread(target=work, args=(number, *run)) for number, run in enumerate(runs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


@pytest.mark.parametrize("attempt", range(4))
def test_two_publishers_of_different_cells_lose_nothing(
    proxy: Proxy, registry: RunningRegistry, tmp_path: Path, attempt: int
) -> None:
    key = write_keys(tmp_path / "keys")[0]
    runs, cells = [], []
    for number, torch in enumerate(("2.9.1", "2.9.0", "2.8.0")):
        shop = Workshop(tmp_path / f"shop{number}", registry.host)
        cells.append(shop.cell(made_lock(torch), salt=str(number)))
        one = Publishing(shop, key, REPOSITORY, tmp_path / str(number))
        runs.append((one, shop.report(cells[-1])))
    assert all(publish_at_once(*runs, host=registry.host)), [one.log for one, _ in runs]
    found = assert_complete(registry.host, REPOSITORY)
    newest, older, oldest = (cell["image"]["digest"] for cell in cells)
    assert found["latest-verified"] == found["2.9-cu128"] == found["2.9.1-cu128"] == newest
    assert found["2.9.0-cu128"] == older
    assert found["2.8-cu128"] == found["2.8.0-cu128"] == oldest


@pytest.mark.parametrize("attempt", range(4))
def test_two_publishers_of_one_image_keep_both_pieces_of_evidence(
    proxy: Proxy, registry: RunningRegistry, tmp_path: Path, attempt: int
) -> None:
    shop = Workshop(tmp_path / "shop", registry.host)
    cell = shop.cell(made_lock())
    runs = []
    for number in range(3):
        key = write_keys(tmp_path / f"keys{number}")[0]
        one = Publishing(shop, key, REPOSITORY, tmp_path / str(number))
        runs.append((one, shop.report(cell)))
    assert all(publish_at_once(*runs, host=registry.host)), [one.log for one, _ in runs]
    with Registry(registry.host) as client:
        listed = client.referrers(
            REPOSITORY, cell["image"]["digest"], "application/vnd.dsse.envelope.v1+json"
        )
        assert len(listed) == 3
        tag = cell["image"]["digest"].replace(":", "-") + ".att"
        manifest = client.manifest(REPOSITORY, tag)
        assert manifest is not None
        assert len(manifest.json()["layers"]) == 3


@pytest.mark.parametrize("attempt", range(4))
def test_of_two_images_under_one_immutable_tag_one_wins_and_takes_all_tags(
    proxy: Proxy, registry: RunningRegistry, tmp_path: Path, attempt: int
) -> None:
    key, lock = write_keys(tmp_path / "keys")[0], made_lock()
    runs, digests = [], []
    for number in range(2):
        shop = Workshop(tmp_path / f"shop{number}", registry.host)
        cell = shop.cell(lock, salt=f"built {number}")
        digests.append(cell["image"]["digest"])
        one = Publishing(shop, key, REPOSITORY, tmp_path / str(number))
        runs.append((one, shop.report(cell)))
    done = publish_at_once(*runs, host=registry.host)
    assert sorted(done) == [False, True], [one.log for one, _ in runs]
    found = assert_complete(registry.host, REPOSITORY)
    assert set(found.values()) == {digests[done.index(True)]}
    loser = runs[done.index(False)][0]
    assert "already names another image" in "\n".join(loser.log)


def test_wrong_credentials_are_reported_without_showing_them(
    proxy: Proxy,
    registry: RunningRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = docker_config(tmp_path / "wrong", registry.host, password="not-the-secret")
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    shop = Workshop(tmp_path / "shop", registry.host)
    shop.report(shop.cell(made_lock()))
    assert main(shop.arguments()) == 3
    output = capsys.readouterr()
    assert "docker login" in output.err
    assert "not-the-secret" not in output.out + output.err
