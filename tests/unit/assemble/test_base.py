from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.assemble.assembling import tiny_base, tiny_lock
from tests.unit.assemble.test_builder import read_layout
from tests.unit.fakeregistry import FakeRegistry
from torchproof.assemble.base_image import BaseImage, BaseLayer
from torchproof.assemble.build_image import build_image
from torchproof.assemble.make_layers import BuildResources
from torchproof.errors import CellError, IntegrityError
from torchproof.index.indexes import Indexes
from torchproof.index.wheel_store import WheelStore
from torchproof.model.digests import sha256_digest
from torchproof.model.lock import Lock, LockedBase
from torchproof.registry import (
    DOCKER_MANIFEST,
    DOCKER_MANIFEST_LIST,
    OCI_CONFIG,
    OCI_LAYER_GZIP,
    Descriptor,
    Registry,
)

DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry().running() as registry:
        yield registry


def tar_of(*names: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return out.getvalue()


def push_base(fake: FakeRegistry, *tars: bytes, index: bool = False) -> str:
    """Push an image as Docker does; return its reference by digest."""
    with Registry(fake.host) as registry:
        layers = [
            registry.push_blob("os/base", gzip.compress(tar, mtime=0), media_type=DOCKER_LAYER)
            for tar in tars
        ]
        config = {
            "config": {
                "Env": ["PATH=/bin", "OWN=1"],
                "Labels": {"from": "base"},
                "Entrypoint": ["/x"],
                "StopSignal": "SIGINT",
            },
            "rootfs": {"type": "layers", "diff_ids": [sha256_digest(tar) for tar in tars]},
        }
        document = {
            "schemaVersion": 2,
            "mediaType": DOCKER_MANIFEST,
            "config": registry.push_blob(
                "os/base", json.dumps(config).encode(), media_type=OCI_CONFIG
            ).as_json(),
            "layers": [layer.as_json() for layer in layers],
        }
        data = json.dumps(document).encode()
        digest = registry.put_manifest("os/base", "v1", data, media_type=DOCKER_MANIFEST)
        if index:
            platforms = [("arm64", "sha256:" + "0" * 64), ("amd64", digest)]
            listing = {
                "manifests": [
                    {"digest": one, "platform": {"os": "linux", "architecture": machine}}
                    for machine, one in platforms
                ]
            }
            digest = registry.put_manifest(
                "os/base", "v2", json.dumps(listing).encode(), media_type=DOCKER_MANIFEST_LIST
            )
    return f"{fake.host}/os/base@{digest}"


def build(tmp_path: Path, lock: Lock, target: str) -> Any:
    cache = tmp_path / "cache"
    store = WheelStore(cache, Indexes(pytorch="http://127.0.0.1:9"))
    resources = BuildResources(store=store, cache=cache)
    return build_image(lock, target, resources, log=tmp_path / "log")


def with_base(tmp_path: Path, reference: str) -> Lock:
    return replace(tiny_lock(tmp_path, tmp_path / "cache"), base=LockedBase(image=reference))


@pytest.mark.parametrize("index", [False, True])
def test_a_base_of_a_registry_keeps_its_layers(
    tmp_path: Path, fake: FakeRegistry, index: bool
) -> None:
    tars = (tiny_base(tmp_path).read_bytes(), tar_of("./opt/own"))
    reference = push_base(fake, *tars, index=index)
    built = build(tmp_path, with_base(tmp_path, reference), str(tmp_path / "oci"))
    manifest, config, layers = read_layout(tmp_path / "oci")
    assert [gzip.decompress(layer) for layer in layers[:2]] == list(tars)
    assert [one.name for one in built.layers[:3]] == ["base", "base", "python"]
    assert all("docker" not in one["mediaType"] for one in manifest["layers"])
    assert manifest["annotations"]["org.opencontainers.image.base.digest"] in reference
    run = config["config"]
    assert "OWN=1" in run["Env"]
    assert [one for one in run["Env"] if one.startswith("PATH=")] != ["PATH=/bin"]
    assert (run["Labels"]["from"], run["StopSignal"]) == ("base", "SIGINT")
    assert "Entrypoint" not in run


def test_layers_of_a_base_in_the_same_registry_are_mounted(
    tmp_path: Path, fake: FakeRegistry
) -> None:
    lock = with_base(tmp_path, push_base(fake, tiny_base(tmp_path).read_bytes()))
    build(tmp_path, lock, f"{fake.host}/team/torch:x")
    base = next(one for one in fake.blobs if one[0] == "os/base")[1]
    assert ("team/torch", base) in fake.blobs
    assert ("team/torch", "x") in fake.manifests


def test_a_removed_interpreter_is_not_found(tmp_path: Path, fake: FakeRegistry) -> None:
    tars = (tiny_base(tmp_path).read_bytes(), tar_of("./usr/bin/.wh.python3.11"))
    lock = with_base(tmp_path, push_base(fake, *tars))
    with pytest.raises(CellError, match=r"no python3\.11"):
        build(tmp_path, lock, str(tmp_path / "oci"))


def test_a_base_with_a_name_that_climbs_out_is_refused(tmp_path: Path, fake: FakeRegistry) -> None:
    lock = with_base(tmp_path, push_base(fake, tar_of("../usr/bin/python3.11")))
    with pytest.raises(IntegrityError, match="climbs out"):
        build(tmp_path, lock, str(tmp_path / "oci"))


def test_a_layer_that_is_not_compressed_as_its_media_type_says_is_refused() -> None:
    descriptor = Descriptor(media_type=OCI_LAYER_GZIP, digest="sha256:0", size=1)
    layer = BaseLayer(descriptor=descriptor, diff_id="", open=lambda: iter((tar_of("a"),)))
    with pytest.raises(IntegrityError, match="not gzip as its media type says"):
        list(BaseImage(id="", layers=(layer,)).contents())


def test_a_base_that_is_not_there_is_named(tmp_path: Path, fake: FakeRegistry) -> None:
    lock = with_base(tmp_path, f"{fake.host}/os/base@sha256:{'1' * 64}")
    with pytest.raises(CellError, match="no base image"):
        build(tmp_path, lock, str(tmp_path / "oci"))


def test_a_base_for_other_machines_is_named(tmp_path: Path, fake: FakeRegistry) -> None:
    reference = push_base(fake, tiny_base(tmp_path).read_bytes(), index=True)
    lock = replace(with_base(tmp_path, reference), platform="linux/s390x")
    with pytest.raises(CellError, match="linux/s390x"):
        build(tmp_path, lock, str(tmp_path / "oci"))


def test_a_base_with_altered_bytes_is_refused(tmp_path: Path, fake: FakeRegistry) -> None:
    reference = push_base(fake, tiny_base(tmp_path).read_bytes())
    for key, data in fake.blobs.items():
        if len(data) > 500:
            fake.blobs[key] = data[:-9] + b"?" + data[-8:]
    with pytest.raises(IntegrityError):
        build(tmp_path, with_base(tmp_path, reference), str(tmp_path / "oci"))
    assert not (tmp_path / "oci" / "index.json").exists()
