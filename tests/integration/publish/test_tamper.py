"""`verify` on altered evidence: it names the part and exits 1."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.needs import needs
from tests.integration.publish.test_publish import write_keys
from tests.integration.registries import RunningRegistry, running_registry
from tests.madeimages import Workshop, made_lock
from torchproof.cli import main
from torchproof.registry import OCI_INDEX, Registry

pytestmark = needs("registry")
REPOSITORY = "ai/torch"


class Scene:
    """A published image, and what is needed to alter its evidence."""

    def __init__(self, registry: RunningRegistry, tmp_path: Path, *, signed: bool = True) -> None:
        self.registry = registry
        self.host = registry.host
        self.private, self.public = write_keys(tmp_path / "keys")
        self.shop = Workshop(tmp_path / "shop", self.host)
        self.key = ["--key", str(self.private)] if signed else []
        self.digest = self.publish()

    def publish(self, *, torch: str = "2.9.1", salt: str = "") -> str:
        cell = self.shop.cell(made_lock(torch), salt=salt)
        self.shop.report(cell)
        assert main(self.shop.arguments(*self.key)) == 0
        return str(cell["image"]["digest"])

    @property
    def image(self) -> str:
        return f"{self.host}/{REPOSITORY}:2.9.1-cu128"

    def evidence(self, client: Registry) -> tuple[str, dict[str, Any], bytes]:
        """The proof tag, the manifest and the content of the (only) piece of evidence."""
        for tag in client.tags(REPOSITORY):
            if tag.endswith(".proof"):
                manifest = client.manifest(REPOSITORY, tag)
                assert manifest is not None
                data = manifest.json()
                if "cyclonedx" not in data["artifactType"]:
                    blob = data["layers"][0]["digest"]
                    return tag, data, b"".join(client.read_blob(REPOSITORY, blob))
        raise AssertionError("no evidence")

    def replace(self, content: bytes, **changes: Any) -> None:
        """Replace the published piece of evidence everywhere."""
        with Registry(self.host) as client:
            tag, manifest, _ = self.evidence(client)
            blob = client.push_blob(
                REPOSITORY, content, media_type=manifest["layers"][0]["mediaType"]
            )
            manifest["layers"][0] |= blob.as_json()
            manifest |= changes
            sboms = [
                one.as_json()
                for one in client.referrers(REPOSITORY, self.digest)
                if "cyclonedx" in (one.artifact_type or "")
            ]
            index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": sboms}
            client.put_manifest(
                REPOSITORY,
                self.digest.replace(":", "-"),
                json.dumps(index).encode(),
                media_type=OCI_INDEX,
            )
            client.put_manifest(REPOSITORY, tag, json.dumps(manifest).encode())


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningRegistry]:
    monkeypatch.setenv("TORCHPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker-config"))
    with running_registry(tmp_path / "registry") as found:
        yield found


@pytest.fixture
def scene(registry: RunningRegistry, tmp_path: Path) -> Scene:
    return Scene(registry, tmp_path)


def verify(scene: Scene, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    code = main(["verify", scene.image, "--json", *more])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == (0 if answer["ok"] else 1)
    return answer


def envelope_of(scene: Scene) -> dict[str, Any]:
    with Registry(scene.host) as client:
        loaded: dict[str, Any] = json.loads(scene.evidence(client)[2])
    return loaded


@pytest.mark.parametrize("with_key", [True, False])
def test_one_byte_of_the_evidence(
    scene: Scene, capsys: pytest.CaptureFixture[str], with_key: bool
) -> None:
    envelope = envelope_of(scene)
    payload = base64.b64decode(envelope["payload"]).replace(b'"pass"', b'"pasS"', 1)
    envelope["payload"] = base64.b64encode(payload).decode()
    scene.replace(json.dumps(envelope).encode())
    more = ["--key", str(scene.public)] if with_key else []
    answer = verify(scene, capsys, *more)
    assert [one["part"] for one in answer["faults"]] == ["evidence"]


@pytest.mark.parametrize("with_key", [True, False])
def test_one_byte_of_the_signature(
    scene: Scene, capsys: pytest.CaptureFixture[str], with_key: bool
) -> None:
    envelope = envelope_of(scene)
    signature = bytearray(base64.b64decode(envelope["signatures"][0]["sig"]))
    signature[-1] ^= 1
    envelope["signatures"][0]["sig"] = base64.b64encode(signature).decode()
    scene.replace(json.dumps(envelope).encode())
    more = ["--key", str(scene.public)] if with_key else []
    answer = verify(scene, capsys, *more)
    assert [one["part"] for one in answer["faults"]] == ["signature"]


@pytest.mark.parametrize(
    ("where", "part"), [("payload", "evidence"), ("sig", "signature"), ("{", "evidence")]
)
def test_one_byte_in_the_files_of_the_registry(
    scene: Scene, capsys: pytest.CaptureFixture[str], where: str, part: str
) -> None:
    with Registry(scene.host) as client:
        _, manifest, content = scene.evidence(client)
    digest = manifest["layers"][0]["digest"].removeprefix("sha256:")
    file = scene.registry.storage.joinpath(
        "docker/registry/v2/blobs/sha256", digest[:2], digest, "data"
    )
    at = content.index(where.encode()) + (len(where) + 13 if len(where) > 1 else 0)
    data = bytearray(content)
    data[at] = ord("A") if data[at] != ord("A") else ord("B")
    file.write_bytes(bytes(data))
    answer = verify(scene, capsys)
    assert [one["part"] for one in answer["faults"]] == [part]


def test_a_tag_that_was_moved_to_another_image_without_evidence(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    with Registry(scene.host) as client:
        manifest = client.manifest(REPOSITORY, "2.9.1-cu128")
        assert manifest is not None
        other = json.dumps(manifest.json() | {"annotations": {"made": "otherwise"}}).encode()
        client.put_manifest(REPOSITORY, "2.9.1-cu128", other)
    answer = verify(scene, capsys)
    assert "has no evidence" in answer["faults"][0]["message"]
    assert "names another image" in answer["faults"][0]["message"]


def test_a_tag_that_was_moved_to_an_image_with_evidence_of_its_own(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.publish(torch="2.8.0")
    with Registry(scene.host) as client:
        manifest = client.manifest(REPOSITORY, "2.8.0-cu128")
        assert manifest is not None
        client.put_manifest(REPOSITORY, "2.9.1-cu128", manifest.data)
    answer = verify(scene, capsys)
    assert [one["part"] for one in answer["faults"]] == ["subject"]
    assert "was given to another image: this one is 2.8.0" in answer["faults"][0]["message"]


def test_evidence_of_another_image_attached_to_this_one(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = envelope_of(scene)
    other = scene.publish(torch="2.8.0")
    with Registry(scene.host) as client:
        tags = [one for one in client.tags(REPOSITORY) if one.startswith(other.replace(":", "-"))]
        assert len(tags) == 4
    scene.digest = other
    content = json.dumps(theirs, separators=(",", ":")).encode()
    with Registry(scene.host) as client:
        found = client.manifest(REPOSITORY, "2.8.0-cu128")
        assert found is not None
        blob = client.push_blob(
            REPOSITORY, content, media_type="application/vnd.dsse.envelope.v1+json"
        )
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": "application/vnd.dsse.envelope.v1+json",
            "config": client.push_blob(
                REPOSITORY, b"{}", media_type="application/vnd.oci.empty.v1+json"
            ).as_json(),
            "layers": [blob.as_json()],
            "subject": found.descriptor().as_json(),
        }
        client.put_manifest(REPOSITORY, "any", json.dumps(manifest).encode())
    code = main(["verify", f"{scene.host}/{REPOSITORY}:2.8.0-cu128", "--key", str(scene.public)])
    assert code == 1
    assert "subject is wrong: the evidence is about" in capsys.readouterr().out


def test_a_key_that_is_not_the_signers(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_keys(tmp_path / "others")[1]
    answer = verify(scene, capsys, "--key", str(other))
    assert not answer["evidence"]
    assert "signed by another key" in answer["not_counted"][0]


def test_unsigned_evidence_does_not_count_if_a_key_is_given(
    registry: RunningRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(registry, tmp_path, signed=False)
    assert verify(scene, capsys)["ok"]
    answer = verify(scene, capsys, "--key", str(scene.public))
    assert not answer["ok"]
    assert "not signed" in answer["not_counted"][0]


def test_a_missing_image_and_a_wrong_reference_are_reported(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", f"{scene.host}/{REPOSITORY}:nothing"]) == 1
    assert "there is no such image" in capsys.readouterr().err
    assert main(["verify", "torch:2.9"]) == 2
    assert main(["verify", scene.image, "--require", "prob=x"]) == 2
    assert "did you mean probe?" in capsys.readouterr().err
