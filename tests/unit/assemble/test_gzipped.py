from __future__ import annotations

import gzip
import zlib

from hypothesis import given
from hypothesis import strategies as st

from torchproof.assemble.layer import gzip_members as gzipped

pieces = st.lists(
    st.one_of(st.binary(max_size=60), st.integers(0, 1200).map(bytes)), max_size=12
).map(b"".join)


@given(pieces)
def test_sparse_encoding_inflates_to_its_input(data: bytes) -> None:
    assert zlib.decompress(gzipped.sparse(data), -15) == data


@given(st.lists(st.binary(max_size=200_000), max_size=4))
def test_stored_blocks_inflate_to_their_input(chunks: list[bytes]) -> None:
    assert zlib.decompress(b"".join(gzipped.stored(iter(chunks))), -15) == b"".join(chunks)


@given(st.lists(pieces, min_size=1, max_size=5))
def test_members_follow_one_another(contents: list[bytes]) -> None:
    whole = b"".join(gzipped.member(data) for data in contents)
    assert gzip.decompress(whole) == b"".join(contents)


def test_zeros_take_little_space() -> None:
    assert len(gzipped.member(bytes(4096))) < 60


def test_encoding_is_fixed_byte_by_byte() -> None:
    # Layer digests rest on these bytes; they must never change.
    assert gzipped.sparse(b"torch" + bytes(300) + b"proof").hex() == (
        "2bc92f4ace601805448382a2fcfc3400"
    )
