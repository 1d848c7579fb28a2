"""Wheels of a lock before anything is built: where their files go, bombs, and wrong bytes."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from torchproof.audit.facts import ImageFacts
from torchproof.audit.reading.scan_cache import FactCache
from torchproof.audit.reading.wheels import open_wheels
from torchproof.model.lock import LayerName, Lock, LockedBase, LockedWheel

SITE = "/opt/venv/lib/python3.11/site-packages"
METADATA = b"Metadata-Version: 2.1\nName: made\nVersion: 1.0\n"


def made(folder: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    path = folder / "made-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in {"made-1.0.dist-info/METADATA": METADATA, **members}.items():
            archive.writestr(name, data)
    return path


def facts(path: Path, cache: Path, sha256: str = "") -> ImageFacts:
    wheel = LockedWheel(
        name="made",
        version="1.0",
        filename=path.name,
        sha256=sha256 or hashlib.sha256(path.read_bytes()).hexdigest(),
        size=path.stat().st_size,
        index="pypi",
        layer=LayerName.EXTRAS,
    )
    lock = Lock(
        cell="cell",
        torch="2.9.1",
        cuda="cu128",
        cudnn="",
        nccl="",
        triton=None,
        python="3.11",
        platform="linux/amd64",
        base=LockedBase(bootstrap="debian/bookworm"),
        wheels=(wheel,),
    )
    return open_wheels(lock, {path.name: path}, FactCache(cache))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_files_lie_where_an_installer_puts_them(tmp_path: Path, method: int) -> None:
    members = {
        "made/__init__.py": b"",
        "made-1.0.data/scripts/made": b"#!python\n",
        "made-1.0.data/platlib/made/_C.so": b"\x7fELF",
    }
    found = facts(made(tmp_path, members, method), tmp_path)
    assert f"{SITE}/made/__init__.py" in found.files
    assert "/opt/venv/bin/made" in found.files
    assert "corrupt" in found.read(f"{SITE}/made/_C.so").broken
    assert [(dist.name, dist.version) for dist in found.distributions] == [("made", "1.0")]
    assert not found.problems


def test_a_file_that_is_not_the_locked_one_is_a_finding(tmp_path: Path) -> None:
    (problem,) = facts(made(tmp_path, {}), tmp_path, sha256="a" * 64).problems
    assert problem.rule == "pins.hash"
    assert "made-1.0-py3-none-any.whl" in problem.message
    assert problem.fix


def test_a_zip_bomb_is_a_finding_and_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchproof.audit.reading.wheels.LARGEST_WHEEL", 1 << 20)
    bomb = made(tmp_path, {"made/libbomb.so": bytes(2 << 20)})
    found = facts(bomb, tmp_path)
    assert [problem.rule for problem in found.problems] == ["files.wheel"]
    assert "zip bomb" in found.problems[0].message
    assert not found.files


def test_a_member_larger_than_it_says_is_a_finding(tmp_path: Path) -> None:
    path = made(tmp_path, {"made/liblong.so": b"\x7fELF" + bytes(100_000)})
    data = path.read_bytes()
    size = (100_004).to_bytes(4, "little")
    path.write_bytes(data.replace(size, (50_000).to_bytes(4, "little")))
    found = facts(path, tmp_path)
    assert [problem.rule for problem in found.problems] == ["files.wheel"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "made/../../x"])
def test_a_member_that_climbs_out_is_a_finding(tmp_path: Path, name: str) -> None:
    found = facts(made(tmp_path, {name: b"evil"}), tmp_path)
    assert [problem.rule for problem in found.problems] == ["files.wheel"]


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_a_truncated_wheel_is_a_finding(tmp_path: Path, keep: int) -> None:
    path = made(tmp_path, {"made/data.bin": bytes(1000)})
    path.write_bytes(path.read_bytes()[:keep])
    assert [problem.rule for problem in facts(path, tmp_path).problems] == ["files.wheel"]
