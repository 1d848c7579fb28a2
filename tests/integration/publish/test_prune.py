"""prune and skip-by-content against Debian's docker-registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.needs import needs
from tests.integration.publish.test_publish import tags
from tests.integration.registries import RunningRegistry, running_registry
from tests.madeimages import H100_HOST, SUITE, Workshop, made_lock, probe
from torchproof.cli import main
from torchproof.publish.attestation.verification import Trust
from torchproof.publish.ledger import Ledger
from torchproof.registry import Registry
from torchproof.registry.transport import Patience

pytestmark = needs("registry")
REPOSITORY = "ai/torch"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningRegistry]:
    monkeypatch.setenv("TORCHPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker-config"))
    with running_registry(tmp_path / "registry", delete=True) as found:
        yield found


def publish(shop: Workshop, torch: str, *, salt: str = "", at: str = "2026-11-30T00:00:00Z") -> str:
    cell = shop.cell(made_lock(torch, salt=salt), salt=salt, at=at)
    shop.report(cell)
    assert main(shop.arguments()) == 0
    return str(cell["image"]["digest"])


def prune(shop: Workshop, *more: str) -> int:
    return main(["prune", "--matrix", str(shop.matrix), *more])


def test_a_cell_that_left_the_matrix_goes_only_with_yes(
    registry: RunningRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Workshop(tmp_path / "shop", registry.host)
    gone, stays = publish(shop, "2.7.1"), publish(shop, "2.9.1")
    before = tags(registry.host)
    capsys.readouterr()
    assert prune(shop) == 0
    told = capsys.readouterr().out
    assert f"goes    2.7.1-cu128-py311  {gone}  its cell is not in the matrix" in told
    assert f"stays   2.9.1-cu128-py311  {stays}" in told
    assert tags(registry.host) == before
    assert prune(shop, "--yes") == 0
    after = tags(registry.host)
    assert gone not in after.values()
    assert not any("2.7.1" in tag or gone[7:] in tag for tag in after)
    kept = {tag: digest for tag, digest in before.items() if "2.7" not in tag}
    assert {tag: digest for tag, digest in after.items() if digest == stays} == {
        tag: digest for tag, digest in kept.items() if digest == stays
    }
    assert main(["verify", f"{registry.host}/{REPOSITORY}:latest-verified"]) == 0


def test_a_digest_that_a_kept_tag_needs_stays(registry: RunningRegistry, tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "shop", registry.host)
    needed = publish(shop, "2.7.1")
    publish(shop, "2.9.1")
    with Registry(registry.host) as client:
        manifest = client.manifest(REPOSITORY, "2.7.1-cu128")
        assert manifest is not None
        client.put_manifest(REPOSITORY, "production", manifest.data)
    assert prune(shop, "--yes") == 0
    assert tags(registry.host)["production"] == needed


def test_the_newest_versions_and_verified_ones_stay(
    registry: RunningRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Workshop(tmp_path / "shop", registry.host)
    old = publish(shop, "2.9.1", salt="old", at="2026-01-01T00:00:00Z")
    new = publish(shop, "2.9.1", salt="new", at="2026-02-01T00:00:00Z")
    capsys.readouterr()
    assert prune(shop, "--keep", "1", "--json") == 0
    rows = {one["digest"]: one for one in json.loads(capsys.readouterr().out)}
    assert not rows[old]["goes"] and rows[old]["reason"] == "verified"
    text = shop.matrix.read_text()
    shop.matrix.write_text(text + "  keep_verified: false\n")
    assert prune(shop, "--keep", "1", "--yes") == 0
    left = set(tags(registry.host).values())
    assert new in left and old not in left


def test_a_registry_that_forbids_deletion_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHPROOF_CACHE", str(tmp_path / "cache"))
    with running_registry(tmp_path / "registry") as registry:
        shop = Workshop(tmp_path / "shop", registry.host)
        publish(shop, "2.7.1")
        publish(shop, "2.9.1")
        assert prune(shop, "--yes") == 3
        assert "refused while deleting" in capsys.readouterr().err


def ledger(client: Registry) -> Ledger:
    return Ledger(registry=client, repository=REPOSITORY, trust=Trust())


def test_a_published_plan_need_not_be_built(registry: RunningRegistry, tmp_path: Path) -> None:
    shop, lock = Workshop(tmp_path / "shop", registry.host), made_lock()
    digest = publish(shop, "2.9.1")
    with Registry(registry.host) as client:
        found = ledger(client).already_built(lock)
        assert found is not None and found.digest == digest
        other = made_lock(salt="other")
        assert ledger(client).already_built(other) is None


def test_a_pass_counts_only_for_the_same_suite_driver_and_gpus(
    registry: RunningRegistry, tmp_path: Path
) -> None:
    shop, lock = Workshop(tmp_path / "shop", registry.host), made_lock()
    probes = [probe("torch_import"), probe("ddp_step", "pass", H100_HOST)]
    shop.report(shop.cell(lock, probes=probes, host=H100_HOST))
    assert main(shop.arguments()) == 0
    models = [gpu["model"] for gpu in H100_HOST["gpus"]]
    with Registry(registry.host) as client:
        book = ledger(client)
        image = book.already_built(lock)
        assert image is not None
        found = book.already_proven(image, SUITE, "550.90.07", models)
        assert [one.name for one in found] == ["ddp_step"]
        assert [one.name for one in book.already_proven(image, SUITE, None, [])] == ["torch_import"]
        assert book.already_proven(image, SUITE, "550.90.12", models) == ()
        assert book.already_proven(image, SUITE, "550.90.07", models[:1]) == ()
        assert book.already_proven(image, "sha256:" + "6" * 64, "550.90.07", models) == ()


def test_a_failed_look_up_means_that_everything_is_run() -> None:
    lock = made_lock()
    with Registry("127.0.0.1:9", patience=Patience(attempts=1)) as client:
        assert ledger(client).already_built(lock) is None
