"""The SHA3-512 chunk tree: every 1 MiB chunk is verifiable alone, from any source, in any order, on every core.

Chunk i is the file's bytes [128 + i * chunk, 128 + (i + 1) * chunk); the last one may be shorter. Prefix bytes keep
leaves, nodes and roots apart, so that none can be passed off as another.
"""

import hashlib
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hmac import compare_digest
from pathlib import Path

from aifb.errors import AifbError, Code
from aifb.header import CHUNK_BYTES, HEADER_BYTES, PREFIX_BYTES, ROOT_BYTES, Header

LEAF_BYTES = 64
Buffer = bytes | bytearray | memoryview
Source = str | Path | int

_LEAF_PREFIX = struct.Struct("<BQI")


def leaf(index: int, chunk: Buffer) -> bytes:
    """SHA3-512(0x00 ‖ index u64 ‖ length u32 ‖ chunk)."""
    digest = hashlib.sha3_512(_LEAF_PREFIX.pack(0x00, index, len(chunk)))
    digest.update(chunk)
    return digest.digest()


def top(leaves: Sequence[bytes], *, node_prefix: bytes = b"\x01") -> bytes:
    """Fold leaves into one node: SHA3-512(0x01 ‖ left ‖ right); an odd node is promoted unchanged."""
    if not leaves:
        raise ValueError("a tree has at least one leaf")
    level = list(leaves)
    while len(level) > 1:
        pairs = zip(level[0::2], level[1::2], strict=False)
        folded = [hashlib.sha3_512(node_prefix + left + right).digest() for left, right in pairs]
        level = folded + level[len(level) & ~1 :]
    return level[0]


def root(header_prefix: bytes, top_node: bytes) -> bytes:
    """SHA3-512(0x02 ‖ header[0:56] ‖ top): the artifact's digest."""
    if len(header_prefix) != PREFIX_BYTES:
        raise ValueError(f"the root binds {PREFIX_BYTES} header bytes, not {len(header_prefix)}")
    return hashlib.sha3_512(b"\x02" + header_prefix + top_node).digest()


def leaf_count(total_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """How many chunks bytes [128, total) make."""
    return -(-(total_bytes - HEADER_BYTES) // chunk_bytes)


def split_leaves(table: bytes) -> list[bytes]:
    """Cut a leaf table into its 64-byte leaves."""
    return [table[at : at + LEAF_BYTES] for at in range(0, len(table), LEAF_BYTES)]


@dataclass(frozen=True)
class LeafTable:
    """A header and a leaf table that are proven to belong to a signed root: what chunks are checked against."""

    header: Header
    table: bytes

    @classmethod
    def parse(cls, header_raw: bytes, table: bytes, expected_root: bytes, expected_total: int) -> "LeafTable":
        """Check what travels first against the signed root and length.

        Raises AifbError: the codes of Header.parse, length_mismatch, truncated, trailing_bytes, root_mismatch.
        """
        if len(header_raw) != HEADER_BYTES:
            raise AifbError("truncated", f"The header must be exactly {HEADER_BYTES} bytes, not {len(header_raw)}.")
        header = Header.parse(header_raw)
        if header.total_bytes != expected_total:
            raise AifbError(
                "length_mismatch", f"The header says {header.total_bytes} bytes, the manifest {expected_total}."
            )
        expected_table = leaf_count(expected_total, header.chunk_bytes) * LEAF_BYTES
        if len(table) != expected_table:
            code: Code = "truncated" if len(table) < expected_table else "trailing_bytes"
            raise AifbError(code, f"The leaf table has {len(table)} bytes, this artifact's must have {expected_table}.")
        if not compare_digest(header.root, expected_root):
            raise AifbError("root_mismatch", "The header's root is not the signed digest: this is another artifact.")
        if not compare_digest(root(header_raw[:PREFIX_BYTES], top(split_leaves(table))), expected_root):
            raise AifbError("root_mismatch", "The leaf table does not lead to the signed digest: fetch it again.")
        return cls(header, bytes(table))

    @property
    def count(self) -> int:
        """Number of chunks."""
        return len(self.table) // LEAF_BYTES

    def chunk_span(self, index: int) -> tuple[int, int]:
        """(file offset, length) of a chunk, both in bytes."""
        if not 0 <= index < self.count:
            raise AifbError("out_of_range", f"Chunk {index} does not exist, this artifact has {self.count}.")
        offset = HEADER_BYTES + index * self.header.chunk_bytes
        return offset, min(self.header.chunk_bytes, self.header.total_bytes - offset)

    def check(self, index: int, chunk: Buffer) -> None:
        """Raise AifbError(chunk_mismatch) unless `chunk` is exactly the bytes that the publisher signed."""
        _, length = self.chunk_span(index)
        expected = self.table[index * LEAF_BYTES : (index + 1) * LEAF_BYTES]
        if len(chunk) != length or not compare_digest(leaf(index, chunk), expected):
            raise AifbError(
                "chunk_mismatch", f"Chunk {index} is not what was signed: fetch it again, elsewhere if need be."
            )


def worker_count() -> int:
    """How many threads hash in parallel: the cores that this process may use (hashlib lets go of the GIL)."""
    return max(1, len(os.sched_getaffinity(0)))


def leaves_of_fd(fd: int, total_bytes: int, *, threads: int | None = None) -> list[bytes]:
    """Hash every chunk of an open file of `total_bytes`; raises AifbError(truncated) when it is shorter."""

    def one(index: int) -> bytes:
        offset = HEADER_BYTES + index * CHUNK_BYTES
        length = min(CHUNK_BYTES, total_bytes - offset)
        chunk = os.pread(fd, length, offset)
        if len(chunk) != length:
            raise AifbError("truncated", f"The file ends inside chunk {index}: fetch it again.")
        return leaf(index, chunk)

    count = leaf_count(total_bytes)
    workers = min(threads or worker_count(), count)
    if workers == 1:
        return [one(index) for index in range(count)]
    with ThreadPoolExecutor(workers, thread_name_prefix="aifb-tree") as pool:
        return list(pool.map(one, range(count)))


def read_header(fd: int) -> tuple[bytes, Header]:
    """Read an open file's header and hold it against the file's own size.

    Raises AifbError: the codes of Header.parse, truncated, trailing_bytes.
    """
    raw = os.pread(fd, HEADER_BYTES, 0)
    header = Header.parse(raw)
    size = os.fstat(fd).st_size
    if size < header.total_bytes:
        raise AifbError("truncated", f"The file has {size} of {header.total_bytes} bytes: fetch it again.")
    if size > header.total_bytes:
        raise AifbError("trailing_bytes", f"The file has {size - header.total_bytes} bytes behind its declared end.")
    return raw, header


def compute_root(fd: int, *, threads: int | None = None) -> bytes:
    """The root that an open file's bytes really have, whatever its header claims (64 bytes)."""
    raw, header = read_header(fd)
    return root(raw[:PREFIX_BYTES], top(leaves_of_fd(fd, header.total_bytes, threads=threads)))


def leaf_table_bytes(source: Source, *, threads: int | None = None) -> bytes:
    """Header (128 bytes) and leaf table of a file by path or descriptor: what a server sends first.

    The leaves are computed from the file and led back to the header's root, so a rotten file is never served.
    Raises AifbError: the codes of `read_header`, root_mismatch.
    """
    fd = source if isinstance(source, int) else os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        raw, header = read_header(fd)
        leaves = leaves_of_fd(fd, header.total_bytes, threads=threads)
    finally:
        if not isinstance(source, int):
            os.close(fd)
    if not compare_digest(root(raw[:PREFIX_BYTES], top(leaves)), header.root):
        raise AifbError("root_mismatch", "The file's chunks do not lead to the root in its header: replace the file.")
    return raw + b"".join(leaves)


def split_table(raw: bytes) -> tuple[bytes, bytes]:
    """Cut what `leaf_table_bytes` made into (header, table) for `LeafTable.parse`."""
    return raw[:HEADER_BYTES], raw[HEADER_BYTES:]


__all__ = [
    "LEAF_BYTES",
    "ROOT_BYTES",
    "LeafTable",
    "compute_root",
    "leaf",
    "leaf_count",
    "leaf_table_bytes",
    "leaves_of_fd",
    "read_header",
    "root",
    "split_leaves",
    "split_table",
    "top",
    "worker_count",
]
