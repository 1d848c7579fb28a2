"""Which image of an index is meant, and archives of `docker save`."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from torchproof.errors import CellError, HostError, IntegrityError
from torchproof.image.open_image import from_layout
from torchproof.image.saved_archive import from_saved
from torchproof.image.stored_image import digests_for, pick_platform
from torchproof.model.digests import sha256_digest


def entry(digest: str, platform: str = "") -> dict[str, Any]:
    system, _, machine = platform.partition("/")
    said = {"platform": {"os": system, "architecture": machine}} if platform else {}
    return {"digest": digest, **said}


ATTESTATION = entry("attestation", "unknown/unknown")
ARM, AMD = entry("arm", "linux/arm64"), entry("amd", "linux/amd64")


@pytest.mark.parametrize(
    ("manifests", "chosen"),
    [
        ([], None),
        ([entry("only")], "only"),
        ([ARM, ATTESTATION], "arm"),
        ([ARM, AMD, ATTESTATION], "amd"),
        ([ARM, entry("windows", "windows/amd64")], None),
        ([entry("silent"), AMD], "amd"),
    ],
)
def test_an_index_stands_for_its_only_image_or_the_one_of_the_platform(
    manifests: list[dict[str, Any]], chosen: str | None
) -> None:
    assert pick_platform({"manifests": manifests}) == chosen


def test_the_images_for_a_platform_say_that_they_are() -> None:
    index = {"manifests": [entry("silent"), ARM, AMD, entry("other", "linux/arm64")]}
    assert list(digests_for(index, "linux/arm64/v8")) == ["arm", "other"]
    assert list(digests_for({"manifests": [AMD]}, "linux/s390x")) == []
    assert list(digests_for({}, "linux/amd64")) == []


def save(path: Path, files: dict[str, bytes], links: dict[str, str]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)


def test_a_saved_archive_is_read_in_place_and_its_equal_layers_are_links(tmp_path: Path) -> None:
    config = json.dumps({"rootfs": {"diff_ids": ["sha256:a", "sha256:a"]}}).encode()
    described = [{"Config": "c.json", "Layers": ["one/layer.tar", "two/layer.tar"]}]
    files = {
        "c.json": config,
        "one/layer.tar": b"content",
        "manifest.json": json.dumps(described).encode(),
    }
    save(tmp_path / "image.tar", files, {"two/layer.tar": "../one/layer.tar"})
    image = from_saved(tmp_path / "image.tar", "sha256:x")
    assert image.config_digest == sha256_digest(config)
    assert [b"".join(layer.open()) for layer in image.layers] == [b"content"] * 2
    assert image.names == {image.config_digest}


def test_an_archive_that_holds_no_image_is_named(tmp_path: Path) -> None:
    save(tmp_path / "image.tar", {"manifest.json": b"[]"}, {})
    with pytest.raises(HostError, match="sha256:x: the engine saved no image"):
        from_saved(tmp_path / "image.tar", "sha256:x")


def write_layout(folder: Path, diff_ids: list[str], *, altered: bool = False) -> str:
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes) -> dict[str, Any]:
        digest = sha256_digest(data)
        (blobs / digest.removeprefix("sha256:")).write_bytes(data + b" " * altered)
        return {"mediaType": "any/type", "digest": digest, "size": len(data)}

    config = put(json.dumps({"rootfs": {"diff_ids": diff_ids}}).encode())
    manifest = {"config": config, "layers": [put(b"layer")]}
    return str(put(json.dumps(manifest).encode())["digest"])


def test_a_layout_gives_the_layers_of_its_manifest(tmp_path: Path) -> None:
    image = from_layout(tmp_path, write_layout(tmp_path, ["sha256:a"]))
    (layer,) = image.layers
    assert (layer.diff_id, b"".join(layer.open())) == ("sha256:a", b"layer")


@pytest.mark.parametrize(("diff_ids", "altered"), [([], False), (["sha256:a"], True)])
def test_a_layout_that_was_altered_is_refused(
    tmp_path: Path, diff_ids: list[str], altered: bool
) -> None:
    digest = write_layout(tmp_path, diff_ids, altered=altered)
    with pytest.raises(IntegrityError):
        from_layout(tmp_path, digest)
    with pytest.raises(CellError, match="lacks"):
        from_layout(tmp_path, "sha256:" + "0" * 64)
