"""The header: its fixed bytes, and that packing and parsing are inverse."""

import struct

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from aifb.header import HEADER_BYTES, MAX_METADATA_BYTES, Header, align_up


@given(st.integers(0, MAX_METADATA_BYTES), st.integers(0, 1 << 50), st.binary(min_size=64, max_size=64))
def test_parse_inverts_pack(metadata_bytes: int, data_bytes: int, root: bytes) -> None:
    data_offset = align_up(HEADER_BYTES + metadata_bytes)
    header = Header(data_offset + data_bytes, metadata_bytes, data_offset, data_bytes, root)
    assert Header.parse(header.pack()) == header


def test_bytes_are_those_of_the_format() -> None:
    raw = Header(4096 + 10, 300, 4096, 10, bytes(range(64))).pack()
    assert len(raw) == 128
    assert raw[:8] == b"AIFB\x00\x01\x01\x00"
    assert struct.unpack_from("<QQQQQII", raw, 8) == (4106, 128, 300, 4096, 10, 1 << 20, 0)
    assert raw[56:120] == bytes(range(64))
    assert struct.unpack_from("<II", raw, 120) == (google_crc32c.value(raw[:120]), 0)
