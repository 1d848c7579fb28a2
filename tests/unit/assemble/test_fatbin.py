"""Device code in libraries: containers made here, by the layout that was measured."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from torchproof.assemble.layer.fatbin import MAGIC, architectures, containers, is_emptied

PTX, SASS, OTHER = 1, 2, 16


def entry(kind: int, arch: int, code: bytes) -> bytes:
    header = struct.pack("<HHIQ", kind, 0x101, 64, len(code)) + bytes(12)
    header += struct.pack("<I", arch) + bytes(32)
    return header + code


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return MAGIC + struct.pack("<HHQ", 1, 16, len(body)) + body


CODE = b"\x7fELF" + b"code" * 16


def test_names_machine_code_and_ptx_of_every_container() -> None:
    first = container(entry(SASS, 80, CODE), entry(SASS, 90, CODE))
    second = container(entry(PTX, 120, b".version 8.0" * 6), entry(OTHER, 75, CODE))
    data = b"before" * 9 + first + bytes(40) + second + b"after"
    assert architectures(data) == ("sm_80", "sm_90", "compute_120")
    assert [found.offset for found in containers(data)] == [54, 54 + len(first) + 40]


def test_a_library_is_emptied_when_all_of_its_code_is_zeros() -> None:
    assert is_emptied(container(entry(SASS, 80, bytes(64)), entry(OTHER, 75, CODE)))
    assert not is_emptied(container(entry(SASS, 80, bytes(64)), entry(SASS, 90, CODE)))
    assert not is_emptied(container(entry(OTHER, 75, CODE)))
    assert not is_emptied(b"no device code")


def test_zeroed_code_counts_as_absent() -> None:
    data = container(entry(SASS, 80, bytes(64)), entry(SASS, 90, CODE))
    assert architectures(data) == ("sm_90",)


def test_payload_of_an_entry_lies_where_it_says() -> None:
    data = bytes(8) + container(entry(SASS, 90, CODE))
    ((found,),) = [one.entries for one in containers(data)]
    assert data[found.offset : found.offset + found.size] == CODE


def test_a_search_stays_within_the_named_sections() -> None:
    first, second = container(entry(SASS, 80, CODE)), container(entry(SASS, 90, CODE))
    assert architectures(first + second, [(len(first), len(second))]) == ("sm_90",)


def test_a_magic_by_chance_is_passed_over() -> None:
    data = MAGIC + b"not a container at all" + container(entry(SASS, 90, CODE))
    assert architectures(data) == ("sm_90",)


@given(st.lists(st.sampled_from([MAGIC, bytes(8), b"\1\0\x10\0", b"\xff" * 9, CODE]), max_size=40))
def test_any_bytes_can_be_searched(parts: list[bytes]) -> None:
    data = b"".join(parts)
    for found in containers(data):
        assert 0 <= found.offset < found.offset + found.size <= len(data)


@given(st.data())
def test_a_damaged_container_never_reaches_outside(data: st.DataObject) -> None:
    whole = bytearray(container(entry(SASS, 80, CODE), entry(PTX, 90, CODE)))
    at = data.draw(st.integers(4, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    for found in containers(bytes(whole)):
        assert all(one.offset + one.size <= len(whole) for one in found.entries)
