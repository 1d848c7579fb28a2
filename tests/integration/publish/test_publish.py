"""publish and verify against Debian's docker-registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.integration.needs import needs
from tests.integration.registries import (
    PASSWORD,
    RunningRegistry,
    docker_config,
    running_registry,
)
from tests.madeimages import H100_HOST, Workshop, made_lock, probe
from torchproof.cli import main
from torchproof.registry import Registry

pytestmark = needs("registry")
REPOSITORY = "ai/torch"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker-config"))


@pytest.fixture(params=[False, True], ids=["open", "basic-auth"])
def either(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningRegistry]:
    with running_registry(tmp_path / "registry", auth=request.param) as found:
        if request.param:
            folder = docker_config(tmp_path / "docker", found.host)
            monkeypatch.setenv("DOCKER_CONFIG", str(folder))
        yield found


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RunningRegistry]:
    with running_registry(tmp_path / "registry") as found:
        yield found


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return write_keys(tmp_path / "keys")


def write_keys(folder: Path) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / "proof.key", folder / "proof.pub"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return private, public


def tags(host: str) -> dict[str, str | None]:
    with Registry(host) as client:
        return {one: client.manifest_digest(REPOSITORY, one) for one in client.tags(REPOSITORY)}


def test_a_verified_cell_is_published_and_verified(
    either: RunningRegistry,
    tmp_path: Path,
    keys: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    shop, lock = Workshop(tmp_path / "shop", either.host), made_lock()
    cell = shop.cell(lock)
    shop.report(cell)
    assert main(shop.arguments("--key", str(keys[0]))) == 0
    digest = cell["image"]["digest"]
    short = lock.digest.removeprefix("sha256:")[:8]
    found = tags(either.host)
    for tag in (f"{lock.cell}-{short}", lock.cell, "2.9.1-cu128", "2.9-cu128", "latest-verified"):
        assert found[tag] == digest
    output = capsys.readouterr()
    assert PASSWORD not in output.out + output.err
    image = f"{either.host}/{REPOSITORY}:2.9-cu128"
    assert main(["verify", image, "--key", str(keys[1])]) == 0
    told = capsys.readouterr().out
    assert "verified" in told and digest in told and "docker 20.10.24" in told


def test_a_second_publish_changes_nothing(
    registry: RunningRegistry, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    shop = Workshop(tmp_path / "shop", registry.host)
    shop.report(shop.cell(made_lock()))
    assert main(shop.arguments("--key", str(keys[0]))) == 0
    before = tags(registry.host)
    assert main(shop.arguments("--key", str(keys[0]))) == 0
    assert tags(registry.host) == before
    assert sum(tag.endswith(".proof") for tag in before) == 2


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        ("unproven", "ddp_step needs 2 GPUs"),
        ("failed", "linkage: undefined symbol"),
        ("blocked", "the index does not answer"),
    ],
)
def test_what_is_not_verified_is_refused_by_name_and_reason(
    registry: RunningRegistry,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    verdict: str,
    reason: str,
) -> None:
    shop, lock = Workshop(tmp_path / "shop", registry.host), made_lock()
    probes = [probe("torch_import"), probe("ddp_step", "skip")]
    shop.report(shop.cell(lock, verdict=verdict, reason=reason, probes=probes))
    assert main(shop.arguments()) == 1
    assert f"{lock.cell}: refused: {verdict}: {reason}" in capsys.readouterr().out
    assert tags(registry.host) == {}


def test_an_accepted_unproven_cell_says_so_in_its_annotation(
    registry: RunningRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop, lock = Workshop(tmp_path / "shop", registry.host), made_lock()
    shop.configure(registry.host, REPOSITORY, "ddp_*")
    probes = [probe("torch_import"), probe("ddp_step", "skip")]
    shop.report(shop.cell(lock, verdict="unproven", reason="no 2 GPUs", probes=probes))
    assert main(shop.arguments()) == 0
    found = tags(registry.host)
    assert "latest-verified" not in found
    with Registry(registry.host) as client:
        manifest = client.manifest(REPOSITORY, "2.9.1-cu128")
    assert manifest is not None
    assert manifest.json()["annotations"]["torchproof.unproven"] == "ddp_step"
    image = f"{registry.host}/{REPOSITORY}:2.9.1-cu128"
    assert main(["verify", image]) == 0
    assert "UNPROVEN  ddp_step" in capsys.readouterr().out
    assert main(["verify", image, "--require", "verdict=verified"]) == 1
    assert main(["verify", image, "--require", "probe=ddp_step"]) == 1


def test_an_immutable_tag_never_moves(
    registry: RunningRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop, lock = Workshop(tmp_path / "shop", registry.host), made_lock()
    shop.report(shop.cell(lock))
    assert main(shop.arguments()) == 0
    before = tags(registry.host)
    shop.report(shop.cell(lock, salt="built again"))
    assert main(shop.arguments()) == 1
    assert "already names another image" in capsys.readouterr().err
    after = tags(registry.host)
    assert {tag: after[tag] for tag in before} == before


def test_an_image_that_is_not_what_its_tags_would_say_is_not_tagged(
    registry: RunningRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Workshop(tmp_path / "shop", registry.host)
    cell = shop.cell(made_lock())
    shop.report(cell | {"nccl": "2.26.2"})
    assert main(shop.arguments()) == 1
    assert "NCCL in the image is 2.27.5, not 2.26.2" in capsys.readouterr().err
    assert tags(registry.host) == {}


def test_moving_tags_go_to_the_newest_release(registry: RunningRegistry, tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "shop", registry.host)
    new, old = shop.cell(made_lock("2.9.1")), shop.cell(made_lock("2.9.0"))
    other = shop.cell(made_lock("2.9.1", python="3.12"))
    shop.report(new)
    assert main(shop.arguments()) == 0
    shop.report(old, other)
    assert main(shop.arguments()) == 0
    found = tags(registry.host)
    assert found["2.9-cu128"] == found["2.9.1-cu128"] == new["image"]["digest"]
    assert found["2.9.0-cu128"] == old["image"]["digest"]
    assert found["2.9.1-cu128-py312"] == other["image"]["digest"]
    assert found["latest-verified"] == new["image"]["digest"]


def test_a_newer_lock_of_a_cell_takes_its_tags(registry: RunningRegistry, tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "shop", registry.host)
    shop.report(shop.cell(made_lock()))
    assert main(shop.arguments()) == 0
    newer = shop.cell(made_lock(salt="newer"), salt="newer", at="2026-12-01T00:00:00Z")
    shop.report(newer)
    assert main(shop.arguments()) == 0
    assert tags(registry.host)["2.9.1-cu128"] == newer["image"]["digest"]


def test_staged_content_is_tagged_by_the_next_publish_without_the_image(
    registry: RunningRegistry, tmp_path: Path
) -> None:
    shop, lock = Workshop(tmp_path / "shop", registry.host), made_lock()
    cell = shop.cell(lock)
    shop.report(cell)
    assert main(shop.arguments("--stage")) == 0
    assert lock.cell not in tags(registry.host)
    shop.report(cell | {"image": cell["image"] | {"ref": str(tmp_path / "gone")}})
    assert main(shop.arguments()) == 0
    assert tags(registry.host)[lock.cell] == cell["image"]["digest"]


def test_verify_says_what_was_proven_where(
    registry: RunningRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Workshop(tmp_path / "shop", registry.host)
    probes = [probe("torch_import"), probe("ddp_step", "pass", H100_HOST)]
    shop.report(shop.cell(made_lock(), probes=probes, host=H100_HOST))
    assert main(shop.arguments()) == 0
    image = f"{registry.host}/{REPOSITORY}:latest-verified"
    asked = ["verify", image, "--require", "probe=ddp_step"]
    assert main([*asked, "--driver", "550.90.07", "--gpu", "H100"]) == 0
    assert main([*asked, "--driver", "550"]) == 0
    assert main([*asked, "--driver", "55"]) == 1
    assert main([*asked, "--gpu", "B200"]) == 1
    capsys.readouterr()
    assert main(["verify", image, "--require", "probe=ddp_stop", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert "did you mean ddp_step?" in answer["uncovered"][0]


def test_the_evidence_is_where_cosign_looks(
    registry: RunningRegistry, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    """cosign's rules (ATTESTATION_SPEC.md), checked by openssl alone."""
    import base64
    import subprocess

    shop = Workshop(tmp_path / "shop", registry.host)
    cell = shop.cell(made_lock())
    shop.report(cell)
    assert main(shop.arguments("--key", str(keys[0]))) == 0
    hexadecimal = cell["image"]["digest"].removeprefix("sha256:")
    with Registry(registry.host) as client:
        manifest = client.manifest(REPOSITORY, f"sha256-{hexadecimal}.att")
        assert manifest is not None
        (layer,) = manifest.json()["layers"]
        envelope = json.loads(b"".join(client.read_blob(REPOSITORY, layer["digest"])))
    assert layer["mediaType"] == "application/vnd.dsse.envelope.v1+json"
    assert layer["annotations"]["dev.cosignproject.cosign/signature"] == ""
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
    signed, signature = tmp_path / "signed", tmp_path / "signature"
    signed.write_bytes(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload))
    signature.write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    checked = subprocess.run(
        ["openssl", "dgst", "-sha256", "-verify", keys[1], "-signature", signature, signed],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.stdout.strip() == "Verified OK"
    statement = json.loads(payload)
    assert statement["subject"][0]["digest"] == {"sha256": hexadecimal}


def test_the_contents_list_names_wheels_with_hashes_and_base_packages(
    registry: RunningRegistry, tmp_path: Path
) -> None:
    shop, lock = Workshop(tmp_path / "shop", registry.host), made_lock()
    cell = shop.cell(lock)
    shop.report(cell)
    assert main(shop.arguments()) == 0
    with Registry(registry.host) as client:
        (one,) = client.referrers(
            REPOSITORY, cell["image"]["digest"], "application/vnd.cyclonedx+json"
        )
        manifest = client.manifest(REPOSITORY, one.digest)
        assert manifest is not None
        layer = manifest.json()["layers"][0]["digest"]
        document: dict[str, Any] = json.loads(b"".join(client.read_blob(REPOSITORY, layer)))
    assert document["bomFormat"] == "CycloneDX"
    found = {one["name"]: one for one in document["components"]}
    assert found["torch"]["hashes"][0]["content"] == lock.wheels[1].sha256
    assert found["libc6"]["version"] == "2.36-9"
    assert "gone" not in found


def test_dry_run_writes_nothing(
    registry: RunningRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop, lock = Workshop(tmp_path / "shop", registry.host), made_lock()
    shop.report(shop.cell(lock))
    assert main(shop.arguments("--dry-run")) == 0
    assert f"{lock.cell}: would be" in capsys.readouterr().out
    assert tags(registry.host) == {}
