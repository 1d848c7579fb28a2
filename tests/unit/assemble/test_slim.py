from __future__ import annotations

import errno
import os
import struct
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.assemble.assembling import assemble, slim, tiny_base, tiny_lock
from tests.unit.assemble.test_builder import read_layout, tree
from tests.unit.wheels import record_line
from torchproof.assemble.layer import slim as prune_module
from torchproof.assemble.layer.slim import Pruner, require_served, serves, target_of
from torchproof.assemble.layout_destination import LayoutDestination
from torchproof.errors import HostError, InputError

PTX, SASS, LTO = 1, 2, 8
MAGIC = 0xBA55ED50


def entry(kind: int, arch: int, body: bytes, *, header: int = 64, flags: int = 0) -> bytes:
    """One entry of a container, as torchproof.fatbin describes it."""
    head = bytearray(header)
    struct.pack_into("<HHIQ", head, 0, kind, 0x101, header, len(body))
    struct.pack_into("<I", head, 28, arch)
    struct.pack_into("<Q", head, 40, flags)
    return bytes(head) + body


def container(*entries: bytes, version: int = 1, header: int = 16) -> bytes:
    payload = b"".join(entries)
    return struct.pack("<IHHQ", MAGIC, version, header, len(payload)) + payload


def prune(data: bytes, *gpus: str, cuts: tuple[int, ...] = ()) -> tuple[bytes, Pruner]:
    pruner = Pruner(gpus, size=len(data))
    marks = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    out = b"".join(b"".join(pruner.feed(data[start:end])) for start, end in pairwise(marks))
    out += b"".join(pruner.finish())
    assert len(out) == len(data)
    return out, pruner


@pytest.mark.parametrize(
    ("entries", "gpus", "kept"),
    [
        (((SASS, 80), (SASS, 90), (SASS, 100)), ("sm_90",), {1}),
        (((SASS, 80), (SASS, 90), (PTX, 90)), ("sm_90",), {1}),
        (((SASS, 80), (SASS, 86)), ("sm_89",), {1}),
        (((SASS, 80), (PTX, 80)), ("sm_90",), {1}),
        (((PTX, 70), (PTX, 80), (PTX, 100)), ("sm_90",), {1}),
        (((SASS, 80), (SASS, 90), (SASS, 100)), ("sm_80", "sm_100"), {0, 2}),
        (((SASS, 100), (SASS, 120)), ("sm_90",), set()),
        (((SASS, 90), (SASS, 90), (SASS, 80)), ("sm_90",), {0, 1}),
        (((LTO, 50), (SASS, 80)), ("sm_90",), {0}),
        (((SASS, 90), (SASS, 100)), ("sm_103",), {1}),
    ],
)
def test_the_rule(
    entries: tuple[tuple[int, int], ...], gpus: tuple[str, ...], kept: set[int]
) -> None:
    bodies = [bytes([position + 1]) * 24 for position in range(len(entries))]
    whole = container(
        *(entry(kind, arch, body) for (kind, arch), body in zip(entries, bodies, strict=True))
    )
    out, pruner = prune(whole, *gpus)
    for position, body in enumerate(bodies):
        assert (body in out) == (position in kept)
    assert pruner.counts.kept == len(kept)
    assert not pruner.counts.untouched
    wanted = container(
        *(
            entry(kind, arch, body if position in kept else bytes(24))
            for position, ((kind, arch), body) in enumerate(zip(entries, bodies, strict=True))
        )
    )
    assert out == wanted


codes = st.lists(
    st.builds(
        entry,
        st.sampled_from([PTX, SASS, LTO]),
        st.sampled_from([50, 80, 90, 100]),
        st.binary(max_size=90),
    ),
    min_size=1,
    max_size=6,
).map(lambda entries: container(*entries))
files = st.lists(
    st.one_of(codes, st.binary(max_size=200), st.just(struct.pack("<I", MAGIC))), max_size=6
).map(b"".join)


@given(files, st.lists(st.integers(0, 5000), max_size=12).map(tuple))
def test_how_the_stream_is_cut_does_not_matter(data: bytes, cuts: tuple[int, ...]) -> None:
    assert prune(data, "sm_90", cuts=cuts)[0] == prune(data, "sm_90")[0]


@given(files, st.lists(st.integers(0, 5000), max_size=12).map(tuple))
def test_large_containers_take_the_same_rule(data: bytes, cuts: tuple[int, ...]) -> None:
    in_memory, counts = prune(data, "sm_90")
    with patch.object(prune_module, "HELD", 100):
        through_a_file, others = prune(data, "sm_90", cuts=cuts)
    assert through_a_file == in_memory
    assert others.counts == counts.counts


def test_a_magic_by_chance_takes_nothing_with_it() -> None:
    chance = struct.pack("<IHHQ", MAGIC, 1, 16, 4000) + b"\x07" * 40
    whole = container(entry(SASS, 80, b"old" * 9), entry(SASS, 90, b"new" * 9))
    data = chance + whole + bytes(5000)
    with patch.object(prune_module, "HELD", 100):
        out, pruner = prune(data, "sm_90")
    assert out[len(chance) :].startswith(prune(whole, "sm_90")[0])
    assert pruner.counts.zeroed == 1


def test_a_large_container_that_does_not_parse_stays_and_is_told() -> None:
    whole = bytearray(container(entry(SASS, 80, b"old" * 9), entry(SASS, 90, b"new" * 90)))
    struct.pack_into("<I", whole, 16 + 64 + 27 + 4, 5)  # the header of the second entry
    with patch.object(prune_module, "HELD", 100):
        out, pruner = prune(bytes(whole), "sm_90")
    assert out == whole
    assert pruner.counts.untouched == ["container whose entries do not parse at byte 0"]


def test_a_disk_without_room_for_a_large_container_is_named() -> None:
    whole = container(entry(SASS, 80, b"old" * 90))
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        patch.object(prune_module, "HELD", 100),
        patch("torchproof.assemble.layer.spool.tempfile.TemporaryFile", side_effect=full),
        pytest.raises(HostError, match="No space left"),
    ):
        prune(whole, "sm_90")


@given(st.binary(max_size=3000))
def test_files_without_device_code_stay(data: bytes) -> None:
    assert prune(data, "sm_90")[0] == data


@given(codes, st.data())
def test_a_damaged_container_never_changes_the_size(whole: bytes, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[position] ^= data.draw(st.integers(1, 255))
    prune(bytes(damaged), "sm_90")


def test_a_new_version_is_left_alone_and_told() -> None:
    whole = b"x" * 30 + container(entry(SASS, 80, b"old" * 9), version=2)
    out, pruner = prune(whole, "sm_90")
    assert out == whole
    assert pruner.counts.untouched == ["container of version 2 at byte 30"]


def test_entries_that_do_not_parse_are_left_alone_and_told() -> None:
    broken = entry(SASS, 80, b"old" * 9)[:-5]
    whole = container(broken) + container(entry(SASS, 80, b"new" * 9))
    out, pruner = prune(whole, "sm_90")
    assert b"old" in out
    assert b"new" not in out
    assert pruner.counts.untouched == ["container whose entries do not parse at byte 0"]


def test_a_cut_container_at_the_end_is_left_alone() -> None:
    whole = container(entry(SASS, 80, b"old" * 9))[:-3]
    assert prune(whole, "sm_90")[0] == whole


@pytest.mark.parametrize("gpu", ["90", "sm_", "sm_9", "compute_90", "sm_90a", "", "sm_9999"])
def test_what_is_no_architecture_is_refused(gpu: str) -> None:
    with pytest.raises(InputError):
        target_of(gpu)


@pytest.mark.parametrize(
    ("archs", "gpu", "answer"),
    [
        (("sm_80",), "sm_86", True),
        (("sm_86",), "sm_80", False),
        (("sm_80",), "sm_90", False),
        (("compute_80",), "sm_90", True),
        (("compute_120",), "sm_90", False),
        (("sm_90a",), "sm_90", True),
        ((), "sm_90", False),
    ],
)
def test_what_serves_a_gpu(archs: tuple[str, ...], gpu: str, answer: bool) -> None:
    assert serves(archs, gpu) is answer


def test_unknown_architectures_refuse_nothing() -> None:
    require_served((), ("sm_90",))
    with pytest.raises(InputError, match="sm_120"):
        require_served(("sm_80", "sm_90"), ("sm_90", "sm_120"))


def test_a_slim_image_has_right_hashes_and_tells_what_it_left(tmp_path: Path) -> None:
    library = (
        b"\x7fELF"
        + container(entry(SASS, 80, b"a" * 5000), entry(SASS, 90, b"b" * 5000))
        + container(entry(SASS, 80, b"c" * 99), version=3)
    )
    lock = tiny_lock(tmp_path, tmp_path / "cache", nccl=library)
    base = tiny_base(tmp_path)
    folder = tmp_path / "images"
    built = assemble(
        slim(lock, "sm_90"),
        base,
        tmp_path / "cache",
        LayoutDestination(tmp_path / "oci", "x:y"),
        folder,
    )
    files = tree(read_layout(tmp_path / "oci")[2])
    site = "opt/venv/lib/python3.11/site-packages"
    name = "nvidia/nccl/lib/libnccl.so.2"
    data = files[f"{site}/{name}"][1]
    assert b"a" * 64 not in data
    assert data.count(b"b" * 5000) == 5000
    record = files[f"{site}/nvidia_nccl_cu12-1.0.dist-info/RECORD"][1].decode()
    assert record_line(name, data) in record
    assert "container of version 3" in (folder / "layers.yaml").read_text()
    full = assemble(lock, base, tmp_path / "cache", LayoutDestination(tmp_path / "full", "x:y"))
    assert full.digest != built.digest
