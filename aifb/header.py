"""The 128 bytes at the start of every artifact (docs/aifb.md shows the table)."""

import struct
from dataclasses import dataclass

import google_crc32c

from aifb.errors import AifbError, Code

MAGIC = b"AIFB\x00\x01"
VERSION = 1
HEADER_BYTES = 128
CHUNK_BYTES = 1 << 20
ROOT_BYTES = 64
PREFIX_BYTES = 56  # what the tree's root binds: everything before the root itself
MAX_METADATA_BYTES = 4 << 20
DATA_ALIGNMENT = 4096
MAX_TOTAL_BYTES = (1 << 63) - 1  # file offsets are signed 64-bit numbers

_PREFIX = struct.Struct("<6sHQQQQQII")
_TAIL = struct.Struct("<II")


def align_up(offset: int, alignment: int = DATA_ALIGNMENT) -> int:
    """The smallest multiple of `alignment` that is not below `offset`."""
    return -(-offset // alignment) * alignment


@dataclass(frozen=True)
class Header:
    """The parsed header. Every instance that `parse` returns is consistent in itself; lengths and offsets in bytes."""

    total_bytes: int
    metadata_bytes: int
    data_offset: int
    data_bytes: int
    root: bytes
    metadata_offset: int = HEADER_BYTES
    chunk_bytes: int = CHUNK_BYTES
    flags: int = 0

    @classmethod
    def parse(cls, raw: bytes) -> "Header":
        """Read and check the first 128 bytes of a file.

        Raises AifbError: truncated, bad_magic, bad_version, bad_crc, bad_reserved, and the codes of `check`.
        """
        if len(raw) < HEADER_BYTES:
            raise AifbError("truncated", f"The header has {len(raw)} of its {HEADER_BYTES} bytes: fetch it again.")
        magic, version, total, meta_off, meta_len, data_off, data_len, chunk, flags = _PREFIX.unpack_from(raw)
        if magic != MAGIC:
            raise AifbError("bad_magic", "The file does not begin with the AIFB magic: it is not an artifact.")
        if version != VERSION:
            raise AifbError("bad_version", f"Header version {version} is unknown, this reader knows version {VERSION}.")
        crc, reserved = _TAIL.unpack_from(raw, 120)
        if google_crc32c.value(bytes(raw[:120])) != crc:
            raise AifbError("bad_crc", "The header's CRC-32C does not match its bytes: fetch the file again.")
        if reserved != 0:
            raise AifbError(
                "bad_reserved", "The header's last four bytes are not zero: this reader knows no such file."
            )
        header = cls(total, meta_len, data_off, data_len, bytes(raw[PREFIX_BYTES:120]), meta_off, chunk, flags)
        header.check()
        return header

    def check(self) -> None:
        """Check every field against the others; raises AifbError with the code of the first that is wrong."""
        if self.flags != 0:
            raise AifbError("bad_flags", f"Header flags {self.flags:#x} are unknown, only 0 is defined.")
        if self.chunk_bytes != CHUNK_BYTES:
            raise AifbError(
                "bad_chunk_bytes", f"Chunk length {self.chunk_bytes} is not the {CHUNK_BYTES} of version 1."
            )
        if self.metadata_offset != HEADER_BYTES:
            code: Code = "overlap" if self.metadata_offset < HEADER_BYTES else "gap"
            raise AifbError(code, f"Metadata begins at {self.metadata_offset}, not right behind the header at 128.")
        if self.metadata_bytes > MAX_METADATA_BYTES:
            raise AifbError(
                "metadata_too_large", f"Metadata of {self.metadata_bytes} bytes is over the limit of 4 MiB."
            )
        if self.data_offset % DATA_ALIGNMENT:
            raise AifbError("misaligned", f"The data offset {self.data_offset} is no multiple of {DATA_ALIGNMENT}.")
        expected = align_up(HEADER_BYTES + self.metadata_bytes)
        if self.data_offset != expected:
            code = "overlap" if self.data_offset < expected else "gap"
            raise AifbError(code, f"Data begins at {self.data_offset}, but the metadata puts it at {expected}.")
        if self.data_offset + self.data_bytes > MAX_TOTAL_BYTES:
            raise AifbError("out_of_range", "Data offset plus data length is beyond 2^63 bytes: no file is that long.")
        if self.total_bytes != self.data_offset + self.data_bytes:
            raise AifbError("length_mismatch", "The total length is not data offset plus data length.")

    def prefix(self) -> bytes:
        """The first 56 bytes: what the root of the tree is bound to."""
        return _PREFIX.pack(
            MAGIC,
            VERSION,
            self.total_bytes,
            self.metadata_offset,
            self.metadata_bytes,
            self.data_offset,
            self.data_bytes,
            self.chunk_bytes,
            self.flags,
        )

    def pack(self) -> bytes:
        """The 128 bytes as they stand in the file."""
        body = self.prefix() + self.root
        return body + _TAIL.pack(google_crc32c.value(body), 0)
