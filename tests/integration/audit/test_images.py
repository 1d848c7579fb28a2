"""The audit of real images: of an engine, saved, and of environments of this machine."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.integration.needs import needs
from torchproof.audit.facts import ImageFacts
from torchproof.audit.reading.open_subject import open_anything, open_image
from torchproof.audit.reading.scan_cache import FactCache
from torchproof.audit.run import audit_tree
from torchproof.errors import HostError
from torchproof.model.results import Level

ROOT = Path(__file__).parents[3]


def layer(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture
def image() -> Iterator[str]:
    """Yield an image of two layers; the upper one removes a file of the lower one."""
    client = docker.from_env()
    name = f"localhost/torchproof-test/audit:{uuid.uuid4().hex[:12]}"
    repository, tag = name.rsplit(":", 1)
    base = client.api.import_image_from_data(
        layer({"etc/a.conf": b"lower", "etc/b.conf": b"gone", "opt/libx.so": b""}),
        repository=repository,
        tag=f"{tag}-base",
    )
    dockerfile = io.BytesIO()
    text = f"FROM {name}-base\nCOPY a.conf /etc/a.conf\nENV A=b\nWORKDIR /work\n".encode()
    dockerfile.write(layer({"Dockerfile": text, "a.conf": b"upper"}))
    dockerfile.seek(0)
    try:
        client.images.build(fileobj=dockerfile, custom_context=True, tag=name, rm=True)
        yield name
    finally:
        assert base
        for one in (name, f"{name}-base"):
            client.images.remove(one, force=True)
        client.close()


def check(facts: ImageFacts) -> None:
    assert facts.text("/etc/a.conf") == "upper"
    assert facts.text("/etc/b.conf") == "gone"
    assert facts.read("/opt/libx.so").broken == "is empty"
    assert facts.env["A"] == "b"
    assert facts.config is not None
    assert facts.config.workdir == "/work"
    assert len(facts.layers) >= 2


@needs("docker")
def test_an_image_of_the_engine_is_read_layer_by_layer(image: str, tmp_path: Path) -> None:
    check(open_image(image, cache=FactCache(tmp_path)))
    check(open_image(image, cache=FactCache(tmp_path)))


@needs("docker")
def test_where_the_engines_storage_cannot_be_read_the_engine_saves_the_image(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    check(open_image(image, cache=FactCache(tmp_path)))


@needs("docker")
def test_a_saved_image_and_a_truncated_one(image: str, tmp_path: Path) -> None:
    saved = tmp_path / "image.tar"
    client = docker.from_env()
    saved.write_bytes(b"".join(client.images.get(image).save()))
    client.close()
    check(open_anything(str(saved), cache=FactCache(tmp_path / "cache")))


@needs("docker")
def test_the_verb_prints_json_and_fails_for_an_error(image: str) -> None:
    command = [sys.executable, "build.py", "audit", image, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    (audit,) = json.loads(done.stdout)["audits"]
    assert done.returncode == 1
    assert any(
        one["rule"] == "link.broken" and one["where"] == "/opt/libx.so" and one["fix"]
        for one in audit["findings"]
    )


@needs("docker")
def test_an_image_that_is_nowhere_is_an_error_and_no_traceback() -> None:
    with pytest.raises(HostError, match="no such image"):
        open_image("127.0.0.1:9/nothing:here")


def test_the_environment_of_these_tests_has_no_broken_library() -> None:
    found = [one for one in audit_tree(Path(sys.prefix)) if one.rule == "link.broken"]
    assert not [one for one in found if one.level is Level.ERROR]
