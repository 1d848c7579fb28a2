"""Headers from the template against those of the standard library."""

from __future__ import annotations

import tarfile

from hypothesis import given
from hypothesis import strategies as st

from torchproof.assemble.layer.tar_headers import MTIME, file_header

names = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x24F), min_size=1, max_size=130
).filter(lambda name: name.strip("/"))


@given(names, st.integers(0, 8**11 + 5), st.sampled_from((0o644, 0o755)))
def test_a_file_header_is_the_standard_librarys(name: str, size: int, mode: int) -> None:
    info = tarfile.TarInfo(name.strip("/"))
    info.size, info.mode, info.mtime = size, mode, MTIME
    assert file_header("/" + name, size, mode) == info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
