"""The reader of layers: compression, names, whiteouts, links, and tars that are damaged."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchproof.errors import HostError, IntegrityError
from torchproof.image import layer_tar
from torchproof.image.compression import Compression, compression_of
from torchproof.image.layer_tar import (
    ChunkReader,
    ClimbingName,
    LayerError,
    LayerTar,
    Member,
    MemberKind,
    OpaqueDirectory,
    Removed,
)

Event = Member | Removed | OpaqueDirectory | ClimbingName
LARGE = bytes(range(256)) * 12_000
"""Three mebibytes: more than one piece."""


def info(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


def tar(*members: tuple[str, bytes] | tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                made = tarfile.TarInfo(member[0])
                made.size = len(member[1])
                archive.addfile(made, io.BytesIO(member[1]))
    return buffer.getvalue()


def cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def events(data: bytes) -> list[Event]:
    return list(LayerTar([data], "layer"))


def contents(layer: LayerTar) -> dict[str, bytes]:
    return {event.path: event.read() for event in layer if isinstance(event, Member)}


TWO_FILES = {"/etc/a": b"text" * 999, "/opt/large": LARGE}
TAR = tar(*((f".{path}", data) for path, data in TWO_FILES.items()))


@pytest.mark.parametrize("size", [1000, 1 << 16, 1 << 30])
@pytest.mark.parametrize("packed", [False, True])
def test_a_layer_reads_the_same_however_it_comes(size: int, packed: bool) -> None:
    layer = LayerTar(cut(gzip.compress(TAR) if packed else TAR, size), "layer")
    assert contents(layer) == TWO_FILES
    assert layer.unpacked == len(TAR)


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_first_piece_of_few_bytes_still_tells_the_compression(first: int) -> None:
    data = gzip.compress(TAR)
    assert contents(LayerTar([data[:first], b"", data[first:]], "layer")) == TWO_FILES


def test_pieces_without_bytes_do_not_end_a_layer() -> None:
    halves = [TAR[:700], b"", TAR[700:], b""]
    assert contents(LayerTar(halves, "layer")) == TWO_FILES


def test_gzip_members_that_follow_one_another_are_one_layer() -> None:
    joined = b"".join(gzip.compress(part) for part in cut(TAR, 1 << 18))
    assert contents(LayerTar(cut(joined, 4096), "layer")) == TWO_FILES


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the program zstd is not installed")
def test_a_layer_compressed_by_zstd() -> None:
    packed = subprocess.run(["zstd", "-c"], input=TAR, capture_output=True, check=True).stdout
    assert contents(LayerTar(cut(packed, 4096), "layer")) == TWO_FILES
    with pytest.raises(LayerError, match="zstd cannot unpack"):
        contents(LayerTar([packed[: len(packed) // 2]], "layer"))


def test_zstd_that_is_not_installed_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(HostError, match="zstd is not installed"):
        events(b"\x28\xb5\x2f\xfd")


@pytest.mark.parametrize(
    ("media_type", "compression"),
    [
        ("application/vnd.oci.image.layer.v1.tar", Compression.NONE),
        ("application/vnd.oci.image.layer.v1.tar+gzip", Compression.GZIP),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", Compression.GZIP),
        ("application/vnd.oci.image.layer.v1.tar+zstd", Compression.ZSTD),
    ],
)
def test_a_media_type_promises_a_compression(media_type: str, compression: Compression) -> None:
    assert compression_of(media_type) is compression


@pytest.mark.parametrize("promised", Compression)
def test_another_compression_than_promised_is_refused(promised: Compression) -> None:
    layer = LayerTar([gzip.compress(TAR)], "layer", promised=promised)
    if promised is Compression.GZIP:
        assert contents(layer) == TWO_FILES
    else:
        with pytest.raises(LayerError, match=f"gzip, not {promised}"):
            list(layer)


def test_members_say_what_they_are() -> None:
    folder = info("./opt/", tarfile.DIRTYPE)
    folder.mode, folder.uid, folder.gid = 0o41775, 1000, 5
    layer = tar(
        info("./", tarfile.DIRTYPE),
        folder,
        ("opt//./file", b"12345"),
        info("opt/soft", tarfile.SYMTYPE, "../etc/x"),
        info("opt/hard", tarfile.LNKTYPE, "./opt/file"),
        info("/dev/null", tarfile.CHRTYPE),
    )
    found = [event for event in events(layer) if isinstance(event, Member)]
    assert [(one.path, one.kind, one.size, one.target) for one in found] == [
        ("/opt", MemberKind.DIRECTORY, 0, ""),
        ("/opt/file", MemberKind.FILE, 5, ""),
        ("/opt/soft", MemberKind.SYMLINK, 0, "../etc/x"),
        ("/opt/hard", MemberKind.HARD_LINK, 0, "/opt/file"),
        ("/dev/null", MemberKind.OTHER, 0, ""),
    ]
    assert (found[0].mode, found[0].uid, found[0].gid) == (0o1775, 1000, 5)


def test_only_files_have_content() -> None:
    layer = LayerTar([tar(("a", b"1"), info("b", tarfile.LNKTYPE, "a"))], "layer")
    assert contents(layer) == {"/a": b"1", "/b": b""}


def test_whiteouts_are_events_in_the_order_of_the_tar() -> None:
    layer = tar(("etc/.wh.passwd", b""), ("new", b""), (".wh.opt", b""), ("a/.wh..wh..opq", b""))
    assert [type(event) for event in events(layer)] == [Removed, Member, Removed, OpaqueDirectory]
    removed = [event.path for event in events(layer) if not isinstance(event, ClimbingName)]
    assert removed == ["/etc/passwd", "/new", "/opt", "/a"]


@pytest.mark.parametrize("name", [".wh.", "a/.wh..", "a/.wh..."])
def test_a_whiteout_of_no_name_removes_nothing(name: str) -> None:
    assert events(tar((name, b""))) == []


@pytest.mark.parametrize("name", ["../etc/passwd", "a/../../b", "/../x", "a/..", "../.wh.etc"])
def test_a_name_that_climbs_out_is_an_event_or_an_error(name: str) -> None:
    data = tar((name, b"evil"), ("ok", b""))
    first, second = events(data)
    assert first == ClimbingName(name=name)
    assert isinstance(second, Member) and second.path == "/ok"
    with pytest.raises(LayerError, match="climbs out of the root") as refused:
        list(LayerTar([data], "layer 2").strictly())
    assert refused.value.where == "layer 2"


def test_a_hard_link_that_climbs_out_has_no_target() -> None:
    (event,) = events(tar(info("a", tarfile.LNKTYPE, "../etc/passwd")))
    assert isinstance(event, Member) and event.target == ""


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("keep", [0, 1, 700, 100_000, 2_000_000])
def test_a_truncated_layer_is_an_error_that_names_it(packed: bool, keep: int) -> None:
    data = gzip.compress(TAR, 0) if packed else TAR
    with pytest.raises(LayerError) as error:
        contents(LayerTar(cut(data[:keep], 1 << 16), "layer 3"))
    assert error.value.where == "layer 3"
    assert isinstance(error.value, IntegrityError)


def test_what_comes_before_the_damage_is_read() -> None:
    layer = LayerTar([TAR[:6000]], "layer").strictly()
    first, second = next(layer), next(layer)
    assert (first.path, second.path) == ("/etc/a", "/opt/large")
    assert isinstance(second, Member)
    with pytest.raises(LayerError, match="unexpected end of data"):
        second.read()


def test_a_wrong_checksum_after_the_end_of_the_tar_is_an_error() -> None:
    packed = bytearray(gzip.compress(TAR))
    packed[-6] ^= 1
    with pytest.raises(LayerError, match="checksum"):
        events(bytes(packed))


def test_a_layer_is_read_to_its_end_so_that_its_source_can_check_it() -> None:
    done = []

    def source() -> Iterator[bytes]:
        yield from cut(TAR + bytes(1 << 21), 1 << 16)
        done.append(True)

    events_of = LayerTar(source(), "layer")
    assert len(list(events_of)) == 2
    assert done and events_of.unpacked == len(TAR) + (1 << 21)


def test_a_layer_that_unpacks_to_more_than_any_layer_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layer_tar, "LARGEST_LAYER", 1 << 20)
    with pytest.raises(LayerError, match="unpacks to more than"):
        events(gzip.compress(TAR))


def test_errors_of_the_source_stay_what_they_are(tmp_path: Path) -> None:
    def altered() -> Iterator[bytes]:
        yield TAR[:5000]
        raise IntegrityError("not what was promised")

    with pytest.raises(IntegrityError, match="promised") as error:
        contents(LayerTar(altered(), "layer"))
    assert not isinstance(error.value, LayerError)

    def gone() -> Iterator[bytes]:
        with (tmp_path / "gone").open("rb") as file:
            yield file.read()

    with pytest.raises(HostError, match="cannot read a layer"):
        list(LayerTar(gone(), "layer"))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=2000), st.integers(0, 3000), st.integers(0, 255))
def test_any_bytes_are_a_layer_or_an_error(noise: bytes, at: int, value: int) -> None:
    damaged = bytearray(tar(("etc/a", b"text" * 99), info("b", tarfile.SYMTYPE, "../x")))
    damaged[at % len(damaged)] = value
    for data in (noise, bytes(damaged), gzip.compress(noise)):
        try:
            contents(LayerTar([data], "layer"))
        except LayerError:
            continue


@given(st.lists(st.binary(max_size=9), max_size=9), st.lists(st.integers(0, 20), max_size=9))
def test_pieces_read_as_one_file(pieces: list[bytes], sizes: list[int]) -> None:
    reader, whole = ChunkReader(pieces, largest=1000), io.BytesIO(b"".join(pieces))
    assert [reader.read(size) for size in sizes] == [whole.read(size) for size in sizes]
    assert reader.count == whole.tell()
    assert reader.read() == whole.read()
