"""Layers: whiteouts, links, and tars that are broken or mean harm."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchproof.audit.facts import FileEntry, FileKind, ImageFacts
from torchproof.audit.reading.directory import walk
from torchproof.audit.reading.layer_scan import LayerScan, merge, scan_tar
from torchproof.audit.reading.open_subject import open_anything, open_directory
from torchproof.audit.reading.scan_cache import FactCache
from torchproof.errors import CellError, InputError


def tar(*members: tuple[str, bytes | str], compress: bool = False) -> bytes:
    """Make a layer: bytes are a file, a string is a link (`=name` a hard one), "/" a directory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            data = b""
            if content == "/":
                info.type = tarfile.DIRTYPE
            elif isinstance(content, bytes):
                info.size, data = len(content), content
            elif content.startswith("="):
                info.type, info.linkname = tarfile.LNKTYPE, content[1:]
            else:
                info.type, info.linkname = tarfile.SYMTYPE, content
            archive.addfile(info, io.BytesIO(data))
    data = buffer.getvalue()
    return gzip.compress(data) if compress else data


def scan(*members: tuple[str, bytes | str]) -> LayerScan:
    return scan_tar([tar(*members)], "layer")


def paths(*layers: LayerScan) -> list[str]:
    return sorted(merge(layers).files)


def test_an_upper_layer_hides_what_it_whites_out() -> None:
    lower = scan(("etc", "/"), ("etc/passwd", b"root"), ("etc/group", b"x"), ("opt/a/b", b"1"))
    upper = scan(("etc/.wh.passwd", b""), (".wh.opt", b""))
    assert paths(lower, upper) == ["/etc", "/etc/group"]


def test_an_opaque_directory_hides_all_below_it_but_not_its_own() -> None:
    lower = scan(("opt", "/"), ("opt/old", b"1"))
    upper = scan(("opt/new", b"2"), ("opt/.wh..wh..opq", b""))
    assert paths(lower, upper) == ["/opt", "/opt/new"]


def test_a_file_in_place_of_a_directory_takes_its_content_away() -> None:
    lower = scan(("a", "/"), ("a/b", b"1"))
    assert paths(lower, scan(("a", b"file"))) == ["/a"]


def test_what_an_upper_layer_replaces_has_its_text_alone() -> None:
    merged = merge([scan(("etc/os-release", b"old")), scan(("etc/os-release", b"new"))])
    assert merged.details["/etc/os-release"].text == "new"


def test_hard_links_share_content_and_inode() -> None:
    found = scan(("etc/a.conf", b"text"), ("etc/b.conf", "=etc/a.conf"))
    assert found.details["/etc/b.conf"].text == "text"
    assert found.entries["/etc/a.conf"].inode == found.entries["/etc/b.conf"].inode != ""


@pytest.mark.parametrize("name", ["../etc/passwd", "a/../../etc/passwd", "/../x"])
def test_a_path_that_climbs_out_is_a_finding(name: str) -> None:
    found = scan((name, b"evil"), ("ok", b"1"))
    (one,) = found.problems
    assert (one.rule, list(found.entries)) == ("files.climbs", ["/ok"])
    assert name in one.message


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("keep", [1, 700, 5000])
def test_a_truncated_layer_is_a_finding(compress: bool, keep: int) -> None:
    data = tar(("etc/a.conf", b"x" * 9000), ("etc/b.conf", b"y" * 9000), compress=compress)
    found = scan_tar([data[: min(keep, len(data) - 20)]], "layer 3 (sha256:abc)")
    (one,) = found.problems
    assert (one.rule, one.where) == ("files.layer", "layer 3 (sha256:abc)")


def test_a_compressed_layer_reads_as_the_plain_one() -> None:
    members = [("etc/a.conf", b"text"), ("etc/link", "a.conf")]
    data = tar(*members, compress=True)
    packed = scan_tar([data[:40], data[40:]], "layer")
    assert packed == scan_tar([tar(*members)], "layer")


def test_gzip_members_that_follow_one_another_are_one_layer() -> None:
    data = tar(("etc/a.conf", b"x" * 2000))
    joined = gzip.compress(data[:512]) + gzip.compress(data[512:])
    assert scan_tar([joined], "layer").details["/etc/a.conf"].text == "x" * 2000


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=2000), st.integers(0, 3000), st.integers(0, 255))
def test_any_bytes_are_a_layer_or_a_finding(noise: bytes, at: int, value: int) -> None:
    scan_tar([noise], "noise")
    data = bytearray(tar(("etc/a.conf", b"text" * 99), ("b", "/"), ("c", "../../x")))
    data[at % len(data)] = value
    scan_tar([bytes(data)], "damaged")


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("/a", None),
        ("/loop", None),
        ("/up", "/etc"),
        ("/abs/x", "/etc/x"),
        ("/etc/../etc/x", "/etc/x"),
    ],
)
def test_links_are_followed_inside_the_root_alone(start: str, end: str | None) -> None:
    def link(path: str, target: str) -> FileEntry:
        return FileEntry(path=path, kind=FileKind.LINK, target=target)

    files = [
        link("/a", "b"),
        link("/b", "a"),
        link("/loop", "loop/loop"),
        link("/up", "../../../etc"),
        link("/abs", "/etc"),
        FileEntry(path="/etc", kind=FileKind.DIRECTORY),
        FileEntry(path="/etc/x"),
    ]
    facts = ImageFacts(name="links", files={entry.path: entry for entry in files})
    assert facts.resolve(start) == end


def test_a_directory_is_read_without_following_its_links(tmp_path: Path) -> None:
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "secret.conf").write_text("outside")
    (tmp_path / "root/etc/out.conf").symlink_to(tmp_path / "secret.conf")
    (tmp_path / "root/etc/loop").symlink_to("loop")
    (tmp_path / "root/etc/libbad.so").write_bytes(b"")
    facts = open_directory(tmp_path / "root")
    assert facts.text("/etc/out.conf") is None
    assert facts.read("/etc/libbad.so").broken == "is empty"
    assert {entry.path for entry in walk(tmp_path / "root")} == set(facts.files)


def test_a_layer_is_read_once_and_kept_by_its_digest(tmp_path: Path) -> None:
    cache = FactCache(tmp_path)
    made = cache.get("sha256:aa", lambda: scan(("etc/a.conf", b"text"), ("etc/b", "a.conf")))
    again = cache.get("sha256:aa", lambda: pytest.fail("read twice"))
    assert again == made


def test_a_broken_layer_is_not_kept(tmp_path: Path) -> None:
    cache = FactCache(tmp_path)
    assert cache.get("sha256:bb", lambda: scan_tar([b"\0"], "layer")).problems
    assert not cache.get("sha256:bb", lambda: scan(("a", b"1"))).problems


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    cache = FactCache(tmp_path)
    cache.get("sha256:cc", lambda: scan(("a", b"1")))
    (kept,) = tmp_path.glob("*/*.json.gz")
    kept.write_bytes(b"rubbish")
    assert "/a" in cache.get("sha256:cc", lambda: scan(("a", b"1"))).entries


@pytest.mark.parametrize("content", [b"", b"\0" * 2000, b"hello", tar(("a", b"1"))])
def test_a_file_that_is_no_image_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.tar").write_bytes(content)
    with pytest.raises(CellError, match="not an image"):
        open_anything(str(tmp_path / "file.tar"))


def test_a_path_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no"):
        open_anything(str(tmp_path / "nothing"))


@pytest.mark.parametrize("index", ["", "[]", "{}", '{"manifests": [{"digest": "sha256:00"}]}'])
def test_a_layout_without_its_image_is_a_clear_error(tmp_path: Path, index: str) -> None:
    (tmp_path / "oci-layout").write_text("{}")
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(CellError):
        open_anything(str(tmp_path))
