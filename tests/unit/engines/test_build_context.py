"""What a build of the container engine gets, and what it must not see."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.image.test_dockerfile import LOCK
from torchproof.engines.build_context import (
    build_network,
    check_folder,
    write_context,
    write_secrets,
)
from torchproof.engines.installer import IndexUrls
from torchproof.errors import CellError, DriftError

FILES = {"Dockerfile": "FROM scratch\n", "torch.txt": "torch==2.9.1\n"}
OWN = replace(LOCK.wheels[0], index="wheelhouse")


def test_a_folder_that_was_edited_is_drift_and_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\nRUN true\n")
    with pytest.raises(DriftError, match="Dockerfile is not what its lock gives"):
        check_folder(tmp_path, FILES)


def test_a_folder_without_files_is_no_drift(tmp_path: Path) -> None:
    check_folder(tmp_path, FILES)


def test_a_build_sees_its_files_and_the_cells_own_wheels_only(tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    for name in (OWN.filename, "another-1.0-py3-none-any.whl"):
        (house / name).write_bytes(b"wheel")
    write_context(tmp_path / "context", FILES, replace(LOCK, wheels=(OWN,)), [house])
    seen = {path.name for path in (tmp_path / "context").rglob("*") if path.is_file()}
    assert seen == {*FILES, OWN.filename}


def test_an_own_wheel_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(CellError, match=f"{OWN.filename} is in no wheelhouse"):
        write_context(tmp_path / "context", FILES, replace(LOCK, wheels=(OWN,)), [tmp_path])


@pytest.mark.parametrize(
    ("asked", "url", "network"),
    [
        (None, "http://127.0.0.1:8080/simple", "host"),
        (None, "https://index.example/simple", None),
        ("default", "http://127.0.0.1:8080/simple", None),
        ("host", "https://index.example/simple", "host"),
        ("builds", "https://index.example/simple", "builds"),
    ],
)
def test_a_build_gets_the_hosts_network_only_for_an_index_on_it(
    asked: str | None, url: str, network: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHPROOF_BUILD_NETWORK", raising=False)
    if asked:
        monkeypatch.setenv("TORCHPROOF_BUILD_NETWORK", asked)
    assert build_network(IndexUrls(default=None, named=(url,))) == network


def test_secrets_lie_where_no_other_user_can_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("certificate")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    urls = IndexUrls(default=None, named=("https://me:secret@index.example/simple",))
    paths = write_secrets(tmp_path / "secrets", urls)
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert "me:secret@" in paths["uv.toml"].read_text()
    assert paths["ca"] == bundle
