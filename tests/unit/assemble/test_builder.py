from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.assemble.assembling import assemble, slim, tiny_base, tiny_lock
from tests.unit.fakeregistry import FakeRegistry, Fault
from torchproof.assemble.key_locks import KeyLocks
from torchproof.assemble.layout_destination import LayoutDestination, as_tar
from torchproof.assemble.recipes import LARGE, wheel_recipes
from torchproof.assemble.registry_destination import RemoteDestination
from torchproof.errors import CellError, HostError, InputError, IntegrityError, RegistryError
from torchproof.image.layers import make_plan
from torchproof.index.verified_files import mark, state_of
from torchproof.model.lock import Lock
from torchproof.registry import Reference, Registry
from torchproof.registry.transport import Patience

QUICK = Patience(attempts=3, first=0.01, longest=0.1)


class Place:
    """A cache, a base and a lock in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.base = tiny_base(folder)
        self.lock = tiny_lock(folder, self.cache)

    def layout(self, name: str = "oci") -> LayoutDestination:
        return LayoutDestination(self.folder / name, "localhost/torchproof:x")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry().running() as registry:
        yield registry


def push(place: Place, fake: FakeRegistry, lock: Lock | None = None, repository: str = "a") -> Any:
    chosen = lock or place.lock
    with Registry(fake.host, patience=QUICK) as registry:
        reference = Reference(registry=fake.host, repository=repository, tag=chosen.cell)
        destination = RemoteDestination(registry, reference, beside=("a",))
        built = assemble(chosen, place.base, place.cache, destination)
        return built, destination.written_bytes


def read_layout(folder: Path) -> tuple[dict[str, Any], dict[str, Any], list[bytes]]:
    def blob(digest: str) -> bytes:
        data = (folder / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes()
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == digest
        return data

    index = json.loads((folder / "index.json").read_text())
    manifest = json.loads(blob(index["manifests"][0]["digest"]))
    config = json.loads(blob(manifest["config"]["digest"]))
    layers = [blob(one["digest"]) for one in manifest["layers"]]
    for layer, one, diff_id in zip(
        layers, manifest["layers"], config["rootfs"]["diff_ids"], strict=True
    ):
        assert len(layer) == one["size"]
        assert f"sha256:{hashlib.sha256(gzip.decompress(layer)).hexdigest()}" == diff_id
    return manifest, config, layers


def tree(layers: list[bytes]) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    found = {}
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            for info in archive:
                file = archive.extractfile(info) if info.isreg() else None
                found[info.name] = (info, file.read() if file else b"")
    return found


def test_an_image_is_whole_and_its_parts_agree(place: Place) -> None:
    built = assemble(place.lock, place.base, place.cache, place.layout())
    manifest, config, layers = read_layout(place.folder / "oci")
    assert built.size == sum(one["size"] for one in manifest["layers"])
    assert [one.name for one in built.layers] == [
        "base", "python", "cuda", "torch", "nccl", "config",
    ]  # fmt: skip
    assert config["config"]["User"] == "1000:0"
    assert config["config"]["Labels"]["torchproof.cell"] == place.lock.cell
    assert manifest["annotations"]["torchproof.cell"] == place.lock.cell
    files = tree(layers)
    site = "opt/venv/lib/python3.11/site-packages"
    assert files[f"{site}/torch/__init__.py"][1].startswith(b"__version__")
    assert files["opt/venv/bin/python3.11"][0].linkname == "/usr/bin/python3.11"
    assert files["opt/venv/bin/python"][0].linkname == "python3.11"
    assert files["opt/venv/lib64"][0].linkname == "lib"
    assert b"version = 3.11.2\n" in files["opt/venv/pyvenv.cfg"][1]
    assert files["opt/venv/bin/activate"][1] == (
        b'VIRTUAL_ENV=/opt/venv\nPATH="$VIRTUAL_ENV/"bin":$PATH"\nPS1=\'(venv) \'"$PS1"\n'
    )
    assert files["opt/venv/bin/pip3.11"][1].startswith(b"#!/opt/venv/bin/python3.11\n")
    assert files["etc/passwd"][1].endswith(b"torch:x:1000:0:torch:/home/torch:/bin/sh\n")
    assert files["home/torch"][0].uid == 1000


SCRIPT = """
import sys
from pathlib import Path
from tests.unit.assemble.test_builder import Place
from tests.unit.assemble.assembling import assemble
place = Place(Path(sys.argv[1]))
print(assemble(place.lock, place.base, place.cache, place.layout()).digest)
"""


@pytest.mark.parametrize(
    ("umask", "environment"),
    [(0o077, {"TZ": "Asia/Tokyo", "LC_ALL": "C"}), (0o002, {"TZ": "UTC", "LC_ALL": "C.UTF-8"})],
)
def test_equal_locks_give_equal_images_anywhere(
    place: Place, umask: int, environment: dict[str, str]
) -> None:
    here = assemble(place.lock, place.base, place.cache, place.layout()).digest
    there = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(place.folder / "elsewhere")],
        env={**os.environ, **environment, "PYTHONHASHSEED": "7"},
        umask=umask,
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here


def test_nothing_changed_writes_nothing(place: Place) -> None:
    assemble(place.lock, place.base, place.cache, place.layout())
    again = place.layout()
    assert assemble(place.lock, place.base, place.cache, again).reused
    assert again.written_bytes == 0


def test_a_registry_gets_each_byte_once(place: Place, fake: FakeRegistry) -> None:
    built, sent = push(place, fake)
    assert sent == fake.received >= built.size
    again, sent = push(place, fake)
    assert (again.digest, again.reused, sent) == (built.digest, True, 0)
    _, sent = push(place, fake, repository="b")
    assert sent < 20_000  # all layers mounted; the configuration is sent


def test_another_nccl_sends_its_own_bytes_only(place: Place, fake: FakeRegistry) -> None:
    push(place, fake)
    other = tiny_lock(place.folder, place.cache, nccl=b"2")
    wheel = other.wheels[-1]
    _, sent = push(place, fake, replace(other, cell="other"))
    assert sent < wheel.size + 12_000


def test_facts_beside_the_lock_make_wheels_needless(place: Place, fake: FakeRegistry) -> None:
    folder = place.folder / "images"
    first = assemble(place.lock, place.base, place.cache, place.layout(), folder)
    push(place, fake)
    shutil.rmtree(place.cache / "wheels")
    shutil.rmtree(place.cache / "layers")
    with Registry(fake.host, patience=QUICK) as registry:
        reference = Reference(registry=fake.host, repository="a", tag="new")
        destination = RemoteDestination(registry, reference)
        second = assemble(place.lock, place.base, place.cache, destination, folder)
    assert second.digest == first.digest


def test_wrong_facts_never_make_an_image(place: Place) -> None:
    folder = place.folder / "images"
    assemble(place.lock, place.base, place.cache, place.layout(), folder)
    path = folder / "layers.yaml"
    digest = next(
        line.split()[-1]
        for line in path.read_text().splitlines()
        if "cublas" in line or "digest" in line
    )
    path.write_text(path.read_text().replace(digest, "sha256:" + "5" * 64))
    with pytest.raises(IntegrityError):
        assemble(place.lock, place.base, place.folder / "cache", place.layout("new"), folder)
    assert not (place.folder / "new" / "index.json").exists()


def test_a_corrupt_wheel_leaves_no_image(place: Place, fake: FakeRegistry) -> None:
    wheel = place.lock.wheels[1]
    path = place.cache / "wheels" / wheel.sha256 / wheel.filename
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"torch-1\.0"):
        push(place, fake)
    assert not fake.manifests
    with pytest.raises(IntegrityError):
        assemble(place.lock, place.base, place.cache, place.layout())
    assert not (place.folder / "oci" / "index.json").exists()


def test_another_wheel_under_the_same_name_is_refused(place: Place) -> None:
    first, second = place.lock.wheels[0], place.lock.wheels[3]
    wheels = list(place.lock.wheels)
    wheels[0] = replace(first, sha256="0" * 64)
    old = place.cache / "wheels" / first.sha256 / first.filename
    new = place.cache / "wheels" / ("0" * 64) / first.filename
    new.parent.mkdir()
    shutil.copy(old, new)
    with pytest.raises(IntegrityError, match="sha256"):
        assemble(replace(place.lock, wheels=tuple(wheels)), place.base, place.cache, place.layout())
    assert second.sha256 != first.sha256


def test_a_wheel_that_changed_after_it_was_checked_is_checked_again(place: Place) -> None:
    assemble(place.lock, place.base, place.cache, place.layout())
    shutil.rmtree(place.cache / "layers")
    path = next(place.cache.glob("wheels/*/torch-*.whl"))
    state = path.stat()
    data = bytearray(path.read_bytes())
    # A time in the archive's directory: nothing but the hash of the whole file covers it.
    data[data.index(b"PK\x01\x02") + 12] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(IntegrityError, match="the wheel has sha256"):
        assemble(place.lock, place.base, place.cache, place.layout("again"))


def test_a_wheel_that_was_checked_is_not_hashed_again(place: Place) -> None:
    first = assemble(place.lock, place.base, place.cache, place.layout())
    shutil.rmtree(place.cache / "layers")
    path = next(place.cache.glob("wheels/*/torch-*.whl"))
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 12] ^= 1
    path.write_bytes(data)
    mark(path, state_of(path))  # as if it had been right when it was hashed
    again = assemble(place.lock, place.base, place.cache, place.layout("again"))
    assert again.digest == first.digest


def test_a_registry_that_fails_midway_is_resumed(place: Place, fake: FakeRegistry) -> None:
    fake.faults.append(Fault("PUT", "manifests", status=500, times=9))
    with pytest.raises(RegistryError):
        push(place, fake)
    assert not fake.manifests
    fake.faults.clear()
    received = fake.received
    built, _ = push(place, fake)
    assert fake.received == received
    assert ("a", place.lock.cell) in fake.manifests
    assert built.digest


def test_a_lying_registry_gets_no_tag(place: Place, fake: FakeRegistry) -> None:
    fake.lie_about_digest = True
    with pytest.raises(IntegrityError):
        push(place, fake)
    assert not fake.manifests


def test_a_killed_build_is_resumed(place: Place) -> None:
    script = SCRIPT.replace("print(", "import os, time\n"
        "import torchproof.assemble.layout_destination as l\n"
        "write = l._write_all\n"
        "l._write_all = lambda *a: (write(*a), time.sleep(0.2))\nprint(")  # fmt: skip
    child = subprocess.Popen([sys.executable, "-c", script, str(place.folder)])
    blobs = place.folder / "oci/blobs/sha256"
    deadline = time.monotonic() + 30
    while not (blobs.is_dir() and list(blobs.glob("draft-*"))):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (place.folder / "oci" / "index.json").exists()
    assemble(place.lock, place.base, place.cache, place.layout())
    assert not list(blobs.glob("draft-*"))
    read_layout(place.folder / "oci")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_build_that_is_told_to_stop_ends_within_its_layer(place: Place) -> None:
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(HostError, match="stopped"):
        assemble(place.lock, place.base, place.cache, place.layout(), stopping=stopping)
    assert not (place.folder / "oci" / "index.json").exists()
    stopping.clear()
    assemble(place.lock, place.base, place.cache, place.layout(), stopping=stopping)
    read_layout(place.folder / "oci")


def test_cells_side_by_side_make_a_common_layer_once(place: Place, fake: FakeRegistry) -> None:
    (place.folder / "other").mkdir()
    other = tiny_lock(place.folder / "other", place.cache, nccl=b"2")
    locks = KeyLocks()

    def one(lock: Lock, tag: str) -> str:
        with Registry(fake.host, patience=QUICK) as registry:
            reference = Reference(registry=fake.host, repository="a", tag=tag)
            destination = RemoteDestination(registry, reference)
            return assemble(lock, place.base, place.cache, destination, locks=locks).digest

    with ThreadPoolExecutor() as pool:
        first, second = pool.map(one, (place.lock, other), ("x", "y"))
    assert first != second
    assert fake.requests["PUT uploads"] == len(fake.blobs)


def test_a_full_disk_is_named_and_leaves_no_image(place: Place) -> None:
    small = place.folder / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", small], check=False
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(HostError, match="disk is full"):
            assemble(place.lock, place.base, place.cache, LayoutDestination(small, "x:y"))
        assert not (small / "index.json").exists()
        assert not list(small.rglob("draft-*"))
    finally:
        subprocess.run(["umount", small], check=True)


def test_two_images_share_a_layout(place: Place) -> None:
    assemble(place.lock, place.base, place.cache, place.layout())
    other = LayoutDestination(place.folder / "oci", "localhost/torchproof:y")
    assemble(replace(place.lock, cell="y"), place.base, place.cache, other)
    index = json.loads((place.folder / "oci/index.json").read_text())
    assert len(index["manifests"]) == 2
    docker = json.loads((place.folder / "oci/manifest.json").read_text())
    assert [one["RepoTags"] for one in docker] == [
        ["localhost/torchproof:x"],
        ["localhost/torchproof:y"],
    ]


def test_a_layout_streams_as_a_tar(place: Place) -> None:
    assemble(place.lock, place.base, place.cache, place.layout())
    data = b"".join(as_tar(place.folder / "oci"))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = archive.getnames()
    assert {"index.json", "manifest.json", "oci-layout"} <= set(names)
    assert len([name for name in names if name.startswith("blobs/sha256/")]) == 8


def test_a_base_without_the_python_is_refused(place: Place) -> None:
    with pytest.raises(CellError, match=r"no python3\.12"):
        assemble(replace(place.lock, python="3.12"), place.base, place.cache, place.layout())


def test_a_gpu_that_the_wheels_do_not_serve_is_refused_before_building(place: Place) -> None:
    with pytest.raises(InputError, match="sm_120"):
        assemble(slim(place.lock, "sm_120"), place.base, place.cache, place.layout())
    assert not list((place.folder / "oci/blobs/sha256").iterdir())


def test_large_wheels_are_blobs_of_their_own_while_there_is_room(place: Place) -> None:
    wheels = tuple(
        replace(one, size=LARGE + position) for position, one in enumerate(place.lock.wheels)
    )
    lock = replace(place.lock, wheels=wheels)
    assert len(wheel_recipes(lock, make_plan(lock))) == 4
    assert len(wheel_recipes(lock, make_plan(lock), room=3)) == 3
    with pytest.raises(CellError, match="too many layers"):
        wheel_recipes(lock, make_plan(lock), room=2)


def test_a_seed_that_the_lock_replaces_is_left_out(place: Place) -> None:
    wheels = tuple(
        replace(one, name="pip") if one.name == "sympy" else one for one in place.lock.wheels
    )
    lock = replace(place.lock, wheels=wheels)
    assemble(lock, place.base, place.cache, place.layout())
    files = tree(read_layout(place.folder / "oci")[2])
    assert not [name for name in files if "/pip-1.0.dist-info" in name]
