"""Parts of a wheel: the start of a member, and its end from the middle of a deflate stream."""

from __future__ import annotations

import random
import zipfile
import zlib
from pathlib import Path

import pytest

from torchproof.errors import CellError
from torchproof.index.partial_wheel import PartialWheel, resume_inflate
from torchproof.pick.symbols import Library, last_text, names_of


def text(lines: int) -> bytes:
    chosen = random.Random(7)
    return b"".join(b"\0symbol_%d_%d" % (number, chosen.getrandbits(30)) for number in range(lines))


def agree(end: bytes, whole: bytes) -> bool:
    """Compare byte by byte; 0xff stands for what the part that was read does not tell."""
    pairs = zip(end, whole[-len(end) :], strict=True)
    return all(one in (other, 0xFF) for one, other in pairs)


def test_the_end_of_a_stream_is_read_without_its_start() -> None:
    whole = text(200_000)
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    packed = packer.compress(whole) + packer.flush()
    end = resume_inflate(packed[len(packed) // 2 :])
    assert len(end) > 1_000_000
    assert agree(end, whole)


@pytest.mark.parametrize("data", [b"", b"\0" * 100_000, random.Random(1).randbytes(50_000)])
def test_bytes_without_a_block_give_nothing(data: bytes) -> None:
    assert resume_inflate(data) == b""


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_start_and_end_of_a_member(tmp_path: Path, method: int) -> None:
    whole = text(200_000)
    path = tmp_path / "made.whl"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("torch/lib/libtorch_cuda.so", whole)
    with PartialWheel(path) as parts:
        place = parts.find("lib/libtorch_cuda.so")
        assert place is not None
        assert whole.startswith(parts.start(place, 10_000))
        assert agree(parts.end(place, place.packed // 2), whole)
        assert parts.find("lib/libnccl.so.2") is None


def test_a_file_that_is_no_wheel_is_a_cell_error(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"no zip")
    with pytest.raises(CellError, match="not a wheel"):
        PartialWheel(tmp_path / "x.whl")


def test_names_shared_with_a_longer_name_are_found() -> None:
    table = b"\0ncclCommAbort\0pncclSend\0xncclRecv\0cudnnCreate\0"
    assert names_of(table, Library.NCCL) == ["ncclCommAbort", "ncclSend"]


def test_unread_bytes_show_in_the_string_table() -> None:
    assert last_text(b"\x01\x02code\x03\0ncclSend\0nccl\xff\xff\0") == b"\0ncclSend\0nccl\xff\xff\0"
