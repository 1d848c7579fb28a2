from __future__ import annotations

import gzip
import hashlib
import io
import stat
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from installer.records import parse_record_file

from tests.unit.wheels import make_wheel, record_line, sha256
from torchproof.assemble.layer.installation import fix_shebang, install
from torchproof.assemble.layer.stream import LayerStream
from torchproof.assemble.layer.wheel_file import open_wheel, safe_path
from torchproof.assemble.layer.wheel_reader import Inflater
from torchproof.errors import IntegrityError

SITE = "opt/venv/lib/python3.11/site-packages"


def build(*paths: Path, hashing: bool = True) -> tuple[bytes, LayerStream]:
    wheels = [(install(open_wheel(path), "3.11"), sha256(path)) for path in paths]
    stream = LayerStream(wheels=wheels, hashing=hashing)
    return b"".join(stream.chunks()), stream


def unpack(blob: bytes) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(blob), mode="r:gz") as archive:
        found = {}
        for info in archive:
            file = archive.extractfile(info)
            assert info.name not in found, f"{info.name} twice"
            found[info.name] = (info, file.read() if file else b"")
        return found


names = st.lists(
    st.text("abcdefgé_.-", min_size=1, max_size=30).filter(lambda text: text not in (".", "..")),
    min_size=1,
    max_size=4,
).map("/".join)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.dictionaries(names, st.binary(max_size=3000), max_size=6),
    stored=st.booleans(),
    descriptors=st.booleans(),
)
def test_any_wheel_reads_back_from_its_layer(
    tmp_path: Path, files: dict[str, bytes], stored: bool, descriptors: bool
) -> None:
    files = {f"pkg{position}/{name}": data for position, (name, data) in enumerate(files.items())}
    path = make_wheel(tmp_path, files, stored=stored, descriptors=descriptors)
    blob, stream = build(path)
    found = unpack(blob)
    for name, data in files.items():
        assert found[f"{SITE}/{name}"][1] == data
    assert stream.diff_id == "sha256:" + hashlib.sha256(gzip.decompress(blob)).hexdigest()
    assert build(path, hashing=False)[0] == blob


def test_every_path_has_its_folders_before_it(tmp_path: Path) -> None:
    blob, _ = build(make_wheel(tmp_path, {"a/b/c.py": b"1", "a/d.py": b""}))
    seen: set[str] = set()
    for name, (info, _) in unpack(blob).items():
        parent = name.rpartition("/")[0]
        assert not parent or parent in seen
        seen.add(name)
        assert (info.uid, info.gid, info.uname, info.mtime) == (0, 0, "", 315532800)
        assert info.mode == (0o755 if info.isdir() else 0o644)


def test_executable_files_stay_so(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a/tool": b"x", "a/data": b"y"}, executable=("a/tool",))
    found = unpack(build(path)[0])
    assert found[f"{SITE}/a/tool"][0].mode == 0o755
    assert found[f"{SITE}/a/data"][0].mode == 0o644


def test_scripts_get_the_image_interpreter(tmp_path: Path) -> None:
    path = make_wheel(
        tmp_path,
        {"demo-1.0.data/scripts/run": b"#!python -s\nprint(1)\n", "demo/__init__.py": b""},
        entry_points="[console_scripts]\ndemo = demo:main.inner [extra]\n[other]\nx = y\n",
    )
    found = unpack(build(path)[0])
    info, text = found["opt/venv/bin/run"]
    assert text == b"#!/opt/venv/bin/python -s\nprint(1)\n"
    assert info.mode == 0o755
    info, text = found["opt/venv/bin/demo"]
    assert text.startswith(b"#!/opt/venv/bin/python\n")
    assert b"from demo import main" in text
    assert info.mode == 0o755


def test_data_folders_go_where_an_installer_puts_them(tmp_path: Path) -> None:
    data = "demo-1.0.data"
    path = make_wheel(
        tmp_path,
        {
            f"{data}/purelib/p.py": b"p",
            f"{data}/platlib/q.so": b"q",
            f"{data}/data/share/man/x.1": b"m",
            f"{data}/headers/h.h": b"h",
        },
    )
    found = unpack(build(path)[0])
    assert found[f"{SITE}/p.py"][1] == b"p"
    assert found[f"{SITE}/q.so"][1] == b"q"
    assert found["opt/venv/share/man/x.1"][1] == b"m"
    assert found["opt/venv/include/site/python3.11/demo/h.h"][1] == b"h"


def test_record_names_every_file_with_its_hash(tmp_path: Path) -> None:
    path = make_wheel(
        tmp_path,
        {"demo/a.py": b"a", "demo-1.0.data/scripts/run": b"#!python\n"},
        entry_points="[console_scripts]\ndemo = demo:main\n",
    )
    found = unpack(build(path)[0])
    text = found[f"{SITE}/demo-1.0.dist-info/RECORD"][1].decode()
    rows = {row[0]: row for row in parse_record_file(text.splitlines())}
    files = {name for name, (info, _) in found.items() if info.isfile()}
    assert {f"{SITE}/{name}" for name in rows if not name.startswith("..")} | {
        f"opt/venv/{name.removeprefix('../../../')}" for name in rows if name.startswith("..")
    } == files
    for name, row in rows.items():
        if name.endswith("RECORD"):
            assert row[1:] == ("", "")
            continue
        place = f"opt/venv/{name[9:]}" if name.startswith("..") else f"{SITE}/{name}"
        assert ",".join(row[1:]) in record_line("x", found[place][1])


def test_hashes_that_record_lacks_are_computed(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"demo/a.py": b"abc"}, record="demo/a.py,,\n")
    text = unpack(build(path, hashing=False)[0])[f"{SITE}/demo-1.0.dist-info/RECORD"][1].decode()
    assert record_line("demo/a.py", b"abc") in text


def test_installer_names_itself_and_signatures_are_dropped(tmp_path: Path) -> None:
    info = "demo-1.0.dist-info"
    path = make_wheel(tmp_path, {f"{info}/INSTALLER": b"liar", f"{info}/RECORD.jws": b"{}"})
    found = unpack(build(path)[0])
    assert found[f"{SITE}/{info}/INSTALLER"][1] == b"torchproof\n"
    assert found[f"{SITE}/{info}/REQUESTED"][1] == b""
    assert f"{SITE}/{info}/RECORD.jws" not in found


def test_a_file_of_two_wheels_stands_once_and_is_the_later_ones(tmp_path: Path) -> None:
    first = make_wheel(tmp_path, {"ns/__init__.py": b"1"}, name="aa")
    second = make_wheel(tmp_path, {"ns/__init__.py": b"2"}, name="bb")
    assert unpack(build(first, second)[0])[f"{SITE}/ns/__init__.py"][1] == b"2"


def test_long_and_foreign_names_survive(tmp_path: Path) -> None:
    name = "d" * 120 + "/" + "é" * 90 + ".py"
    assert unpack(build(make_wheel(tmp_path, {name: b"1"}))[0])[f"{SITE}/{name}"][1] == b"1"


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../up", "a/../../up", "a//b", "./a", "a\\b", "a/\x01", "..", "a/."]
)
def test_unsafe_names_are_refused(tmp_path: Path, name: str) -> None:
    assert not safe_path(name)
    with pytest.raises(IntegrityError, match="unsafe name"):
        build(make_wheel(tmp_path, {name: b"x"}))


def test_a_name_with_a_hidden_end_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"good.py#evil": b"x"})
    path.write_bytes(path.read_bytes().replace(b"good.py#evil", b"good.py\0evil"))
    with pytest.raises(IntegrityError):
        open_wheel(path)


def test_duplicate_names_are_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.py": b"1"})
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning):
        archive.writestr("a.py", b"2")
    with pytest.raises(IntegrityError, match="occurs twice"):
        open_wheel(path)


def test_a_file_that_is_also_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="both a file and a folder"):
        open_wheel(make_wheel(tmp_path, {"a": b"1", "a/b": b"2"}))


def test_links_are_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {})
    with zipfile.ZipFile(path, "a") as archive:
        entry = zipfile.ZipInfo("link")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(IntegrityError, match="link"):
        open_wheel(path)


def test_other_compression_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {})
    with zipfile.ZipFile(path, "a", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x", b"x" * 99)
    with pytest.raises(IntegrityError, match="compression method"):
        open_wheel(path)


def test_encrypted_members_are_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.py": b"1"})
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02", 0, data.index(b"a.py", data.index(b"PK\x01\x02")))
    data[at + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError):
        open_wheel(path)


def test_every_cut_of_a_wheel_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.py": b"x" * 500})
    whole = path.read_bytes()
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(IntegrityError):
            build(path)


@pytest.mark.parametrize("stored", [True, False])
def test_every_changed_byte_is_refused(tmp_path: Path, stored: bool) -> None:
    path = make_wheel(tmp_path, {"a.py": b"hello " * 40}, stored=stored)
    whole = path.read_bytes()
    wanted = hashlib.sha256(whole).hexdigest()
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 0x20
        path.write_bytes(changed)
        with pytest.raises(IntegrityError):
            stream = LayerStream(wheels=[(install(open_wheel(path), "3.11"), wanted)])
            for _ in stream.chunks():
                pass


def test_a_wrong_crc_is_named(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.py": b"hello"}, stored=True)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"hello", b"jello"))
    with pytest.raises(IntegrityError, match=r"a\.py.*CRC"):
        build(path)


def test_bytes_after_a_deflate_stream_are_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.py": b"hello"})
    file = open_wheel(path)
    member = next(one for one in file.members if one.name == "a.py")
    inflater = Inflater(member, "x")
    with path.open("rb") as stream:
        stream.seek(member.offset)
        packed = stream.read(member.packed)
    with pytest.raises(IntegrityError):
        list(inflater.feed(packed + b"more"))
        inflater.finish()


def test_a_member_that_overlaps_the_next_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.py": b"1" * 9, "b.py": b"2" * 9}, stored=True)
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    struct.pack_into("<II", data, at + 20, 400, 400)
    path.write_bytes(data)
    with pytest.raises(IntegrityError):
        open_wheel(path)


def test_zip64_fields_are_read(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {})
    with (
        zipfile.ZipFile(path, "a") as archive,
        archive.open(zipfile.ZipInfo("big.bin"), "w", force_zip64=True) as file,
    ):
        file.write(b"z" * 1000)
    assert unpack(build(path)[0])[f"{SITE}/big.bin"][1] == b"z" * 1000


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"other-1.0.dist-info/METADATA": b""}, "exactly one"),
        ({"demo-1.0.data/wrong/x": b""}, "not a folder of .data"),
    ],
)
def test_what_is_no_wheel_is_refused(tmp_path: Path, files: dict[str, bytes], match: str) -> None:
    with pytest.raises(IntegrityError, match=match):
        build(make_wheel(tmp_path, files))


def test_a_target_that_is_written_twice_is_refused(tmp_path: Path) -> None:
    files = {"a.py": b"1", "demo-1.0.data/purelib/a.py": b"2"}
    with pytest.raises(IntegrityError, match="installed twice"):
        build(make_wheel(tmp_path, files))


def test_record_lines_that_cannot_be_right_are_made_anew(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"demo/a.py": b"abc"}, record="demo/a.py,sha256=AAAA,99\n")
    text = unpack(build(path)[0])[f"{SITE}/demo-1.0.dist-info/RECORD"][1].decode()
    assert record_line("demo/a.py", b"abc") in text


@pytest.mark.parametrize("line", ["x = no colon\n", "a/b = m:f\n", "broken"])
def test_bad_entry_points_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(IntegrityError):
        build(make_wheel(tmp_path, {}, entry_points="[console_scripts]\n" + line))


def test_shebangs_of_other_interpreters_stay() -> None:
    assert fix_shebang(b"#!/bin/sh\n") == b"#!/bin/sh\n"
    assert fix_shebang(b"#!pythonw\r\nx") == b"#!/opt/venv/bin/python\nx"
