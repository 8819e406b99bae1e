"""The chunk tree against an independent definition, and the leaf table that chunks are checked against."""

import hashlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aifb import tree
from aifb.errors import AifbError
from aifb.header import CHUNK_BYTES, HEADER_BYTES
from aifb.tree import LeafTable
from tests.aifb import samples


def rfc6962_top(leaves: list[bytes]) -> bytes:
    """RFC 6962's recursion: split at the greatest power of two below n. It is the same tree as promoting odd nodes."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << ((len(leaves) - 1).bit_length() - 1)
    return hashlib.sha3_512(b"\x01" + rfc6962_top(leaves[:split]) + rfc6962_top(leaves[split:])).digest()


@given(st.lists(st.binary(min_size=64, max_size=64), min_size=1, max_size=40))
def test_top_is_the_rfc_6962_tree(leaves: list[bytes]) -> None:
    assert tree.top(leaves) == rfc6962_top(leaves)


@given(st.lists(st.binary(min_size=64, max_size=64), min_size=1, max_size=12, unique=True), st.data())
def test_top_depends_on_every_leaf_and_on_their_order(leaves: list[bytes], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(leaves) - 1))
    changed = [*leaves[:at], bytes([leaves[at][0] ^ 1]) + leaves[at][1:], *leaves[at + 1 :]]
    assert tree.top(changed) != tree.top(leaves)
    assert tree.top([*leaves, leaves[-1]]) != tree.top(leaves)
    if len(leaves) > 1:
        assert tree.top(leaves[::-1]) != tree.top(leaves)


@given(st.integers(0, 1 << 40), st.binary(max_size=300))
def test_leaf_binds_index_and_length(index: int, chunk: bytes) -> None:
    expected = hashlib.sha3_512(b"\x00" + struct.pack("<QI", index, len(chunk)) + chunk).digest()
    assert tree.leaf(index, chunk) == expected
    assert tree.leaf(index + 1, chunk) != expected


def test_root_binds_the_header_prefix() -> None:
    assert tree.root(bytes(56), bytes(64)) == hashlib.sha3_512(b"\x02" + bytes(120)).digest()
    with pytest.raises(ValueError):
        tree.root(bytes(55), bytes(64))


@given(st.integers(HEADER_BYTES + 1, 1 << 50))
def test_chunks_tile_the_file(total: int) -> None:
    count = tree.leaf_count(total)
    assert (count - 1) * CHUNK_BYTES < total - HEADER_BYTES <= count * CHUNK_BYTES


@pytest.fixture(name="big")
def big_file(tmp_path: Path) -> Path:
    """A valid artifact-shaped file of four chunks, the last one short."""
    path = tmp_path / "big.aifb"
    path.write_bytes(samples.assemble(b"", bytes(range(256)) * 4 * 3500))
    return path


def test_leaf_table_serves_and_checks_every_chunk(big: Path) -> None:
    content = big.read_bytes()
    header, table = tree.split_table(tree.leaf_table_bytes(big, threads=3))
    leaves = LeafTable.parse(header, table, content[56:120], len(content))
    assert leaves.count == 4
    for index in reversed(range(leaves.count)):  # in any order
        offset, length = leaves.chunk_span(index)
        leaves.check(index, content[offset : offset + length])
    spans = [leaves.chunk_span(index) for index in range(leaves.count)]
    assert spans[0][0] == HEADER_BYTES
    assert sum(length for _, length in spans) == len(content) - HEADER_BYTES


def test_leaf_table_by_descriptor_and_on_any_number_of_threads(big: Path) -> None:
    with big.open("rb") as file:
        assert tree.leaf_table_bytes(file.fileno(), threads=1) == tree.leaf_table_bytes(big, threads=4)


def test_rotten_file_is_not_served(big: Path) -> None:
    content = bytearray(big.read_bytes())
    content[-1] ^= 1
    big.write_bytes(content)
    with pytest.raises(AifbError) as refusal:
        tree.leaf_table_bytes(big)
    assert refusal.value.code == "root_mismatch"


def test_wrong_chunks_are_refused(big: Path) -> None:
    content = big.read_bytes()
    leaves = LeafTable.parse(*tree.split_table(tree.leaf_table_bytes(big)), content[56:120], len(content))
    chunks = [content[o : o + n] for o, n in map(leaves.chunk_span, range(4))]
    flipped = bytes([chunks[2][0] ^ 0x80]) + chunks[2][1:]
    # Chunks 0 to 2 differ only by where the metadata's padding lies; a swapped chunk must still be noticed.
    for index, chunk in ((2, flipped), (1, chunks[0]), (3, chunks[3][:-1]), (3, chunks[3] + b"\0"), (0, b"")):
        with pytest.raises(AifbError) as refusal:
            leaves.check(index, chunk)
        assert refusal.value.code == "chunk_mismatch"
    for index in (-1, 4):
        with pytest.raises(AifbError) as refusal:
            leaves.check(index, chunks[0])
        assert refusal.value.code == "out_of_range"


def test_leaf_table_of_something_else_is_refused(big: Path) -> None:
    content = big.read_bytes()
    header, table = tree.split_table(tree.leaf_table_bytes(big))
    root, total = content[56:120], len(content)
    flipped = bytes([table[0] ^ 1]) + table[1:]
    swapped = table[64:128] + table[:64] + table[128:]
    other_root = bytes(64)
    for head, leaves, expected, length, code in (
        (header, table[:-64], root, total, "truncated"),
        (header, table + bytes(64), root, total, "trailing_bytes"),
        (header, flipped, root, total, "root_mismatch"),
        (header, swapped, root, total, "root_mismatch"),
        (header, table, other_root, total, "root_mismatch"),
        (header, table, root, total + 1, "length_mismatch"),
        (header[:-1], table, root, total, "truncated"),
        (header + b"\0", table, root, total, "truncated"),
        (header[:124] + b"\1\0\0\0", table, root, total, "bad_reserved"),
        (header[:120] + bytes(8), table, root, total, "bad_crc"),
    ):
        with pytest.raises(AifbError) as refusal:
            LeafTable.parse(head, leaves, expected, length)
        assert refusal.value.code == code
