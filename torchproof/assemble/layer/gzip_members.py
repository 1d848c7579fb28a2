"""gzip written by hand: members around deflate streams that exist already, or that we can fix.

gzip allows members one after the other (RFC 1952, 2.2), so a layer is one member for each piece:
the wheel's own deflate bytes, or bytes of ours. The latter are encoded here and not by zlib, whose
output differs between its versions: equal input must give an equal layer on every machine.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import cache

from isal import isal_zlib

HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""Deflate, no name, no time, unknown system."""

_TRAILER = struct.Struct("<II")
_STORED_BLOCK = 0xFFFF
_SMALL = 4096
_RUN = re.compile(rb"\x00{4,}")
_LONGEST_MATCH = 258


def trailer(crc: int, size: int) -> bytes:
    """Return the end of a member: CRC-32 and size (modulo 2**32) of its content."""
    return _TRAILER.pack(crc, size & 0xFFFFFFFF)


def member(data: bytes) -> bytes:
    """Return a member that holds some bytes (tar headers, small files)."""
    body = sparse(data) if len(data) <= _SMALL else b"".join(stored((data,)))
    return HEADER + body + trailer(isal_zlib.crc32(data), len(data))


def stored(chunks: tuple[bytes, ...] | Iterator[bytes]) -> Iterator[bytes]:
    """Yield a deflate stream of stored blocks (RFC 1951, 3.2.4); blocks end where chunks do."""
    for chunk in chunks:
        for start in range(0, len(chunk), _STORED_BLOCK):
            piece = chunk[start : start + _STORED_BLOCK]
            yield b"\x00" + struct.pack("<HH", len(piece), len(piece) ^ 0xFFFF)
            yield piece
    yield b"\x01\x00\x00\xff\xff"


def sparse(data: bytes) -> bytes:
    """Return a deflate stream: one block of fixed Huffman codes, runs of zeros as matches.

    Tar headers are mostly zeros; this takes them to a quarter, and always to the same bytes.
    """
    bits, count = 0b011, 3  # last block, fixed codes
    position = 0
    for run in _RUN.finditer(data):
        bits, count = _literals(data[position : run.start() + 1], bits, count)
        bits, count = _zeros(run.end() - run.start() - 1, bits, count)
        position = run.end()
    bits, count = _literals(data[position:], bits, count)
    count += 7  # end of block: seven zero bits
    return bits.to_bytes((count + 7) // 8, "little")


def _literals(data: bytes, bits: int, count: int) -> tuple[int, int]:
    if data.isascii():
        # All their codes have eight bits, so many bytes go in one step.
        codes = int.from_bytes(data.translate(_ASCII), "little")
        return bits | codes << count, count + 8 * len(data)
    for byte in data:
        code, size = _LITERAL[byte]
        bits |= code << count
        count += size
    return bits, count


def _zeros(length: int, bits: int, count: int) -> tuple[int, int]:
    """Encode `length` more zeros after a literal zero."""
    run, size = _run(length)
    return bits | run << count, count + size


@cache
def _run(length: int) -> tuple[int, int]:
    """Return the codes of some zeros, as matches of distance 1 and at most two literals."""
    bits = count = 0
    while length >= 3:
        step = min(length, _LONGEST_MATCH)
        if 0 < length - step < 3:
            step -= 3
        code, size = _MATCH[step]
        bits |= code << count
        count += size + 5  # distance 1 is code 0 in five bits
        length -= step
    return _literals(bytes(length), bits, count)


def _reverse(value: int, size: int) -> int:
    return int(f"{value:0{size}b}"[::-1], 2)


def _literal_code(symbol: int) -> tuple[int, int]:
    """Return the fixed code of a symbol, lowest bit first, and its size (RFC 1951, 3.2.6)."""
    if symbol < 144:
        return _reverse(0x30 + symbol, 8), 8
    if symbol < 256:
        return _reverse(0x190 + symbol - 144, 9), 9
    if symbol < 280:
        return _reverse(symbol - 256, 7), 7
    return _reverse(0xC0 + symbol - 280, 8), 8


def _match_code(length: int) -> tuple[int, int]:
    """Return code and extra bits of a match length (RFC 1951, 3.2.5)."""
    if length == _LONGEST_MATCH:
        return _literal_code(285)
    offset = length - 3
    extra = max(0, offset.bit_length() - 3)
    symbol = 257 + 4 * extra + (offset >> extra)
    code, size = _literal_code(symbol)
    return code | ((offset & ((1 << extra) - 1)) << size), size + extra


_LITERAL = tuple(_literal_code(symbol) for symbol in range(256))
_ASCII = bytes(code for code, _ in _LITERAL[:128]) + bytes(128)
_MATCH = {length: _match_code(length) for length in range(3, _LONGEST_MATCH + 1)}
