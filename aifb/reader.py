"""Open an artifact: verify the very file that is mapped, check every offset, then hand out views without copying."""

import mmap
import os
from collections.abc import Mapping
from contextlib import suppress
from hmac import compare_digest
from pathlib import Path
from types import TracebackType

import numpy as np

from aifb import checks, dtypes, tree
from aifb import metadata_pb2 as pb
from aifb.errors import AifbError
from aifb.header import HEADER_BYTES, PREFIX_BYTES, Header
from aifb.tensors import TensorData


class Artifact:
    """A mapped, checked artifact. Views stay valid as long as anyone holds them; close it, or use it in a `with`."""

    def __init__(self, mapped: mmap.mmap, header: Header, metadata: pb.Metadata) -> None:
        self.header = header
        self.metadata = metadata
        self._map = mapped
        self._view = memoryview(mapped).toreadonly()
        self._tensors = {tensor.name: tensor for tensor in metadata.tensors}
        self._assets = {asset.name: asset for asset in metadata.assets}

    @property
    def digest(self) -> str:
        """The root of the chunk tree as 128 hexadecimal characters."""
        return self.header.root.hex()

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """All tensor names, aliases included, in name order."""
        return tuple(sorted(self._tensors))

    @property
    def asset_names(self) -> tuple[str, ...]:
        """All asset names in name order."""
        return tuple(sorted(self._assets))

    def tensor(self, name: str) -> pb.Tensor:
        """The entry that holds a tensor's bytes: an alias is followed. Raises AifbError(not_found)."""
        if name not in self._tensors:
            raise AifbError("not_found", f"The artifact has no tensor {name!r}.")
        entry = self._tensors[name]
        return self._tensors[entry.alias_of] if entry.alias_of else entry

    def tensor_bytes(self, name: str) -> memoryview:
        """A tensor's bytes, read-only, in the map. Raises AifbError(not_found)."""
        return self._span(self.tensor(name))

    def dtype_name(self, name: str) -> str:
        """A tensor's stored element type, such as "float32" or "bfloat16". Raises AifbError(not_found)."""
        return dtypes.BY_NUMBER[self.tensor(name).dtype].name

    def array(self, name: str) -> np.ndarray:
        """A tensor as a read-only array in the map; types that numpy lacks come as uint16 or uint8 of the same bits.

        An int4 tensor comes flat, two values to a byte. Raises AifbError(not_found).
        """
        return self.tensor_data(name).array()

    def tensor_data(self, name: str) -> TensorData:
        """A tensor's type, shape and bytes, an alias followed. Raises AifbError(not_found)."""
        entry = self.tensor(name)
        return TensorData(dtypes.BY_NUMBER[entry.dtype].name, tuple(entry.shape), self._span(entry))

    def tensors(self) -> Mapping[str, TensorData]:
        """All tensors as the writer takes them, aliases as aliases."""
        return {
            name: TensorData.alias(entry.alias_of, self.tensor_data(name)) if entry.alias_of else self.tensor_data(name)
            for name, entry in sorted(self._tensors.items())
        }

    def quantisation(self, name: str) -> pb.Quantisation | None:
        """How a tensor is quantised, or None for one stored as it is. Raises AifbError(not_found)."""
        entry = self.tensor(name)
        return entry.quantisation if entry.HasField("quantisation") else None

    def asset(self, name: str) -> bytes:
        """A copy of an asset's bytes. Raises AifbError(not_found)."""
        if name not in self._assets:
            raise AifbError("not_found", f"The artifact has no asset {name!r}.")
        return bytes(self._span(self._assets[name]))

    def entry_point(self, name: str = "infer") -> pb.EntryPoint:
        """An entry point by name. Raises AifbError(not_found)."""
        for entry in self.metadata.entry_points:
            if entry.name == name:
                return entry
        raise AifbError("not_found", f"The artifact has no entry point {name!r}.")

    def close(self) -> None:
        """Let go of the map; where arrays still point into it, it goes with the last of them."""
        self._view.release()
        with suppress(BufferError):  # somebody holds a view: unmapping now would pull the memory from under it
            self._map.close()

    def _span(self, item: pb.Tensor | pb.Asset) -> memoryview:
        start = self.header.data_offset + item.offset
        return self._view[start : start + item.length]

    def __enter__(self) -> "Artifact":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_artifact(
    source: str | Path | int,
    *,
    expected_root: bytes | None = None,
    verify: bool = True,
    threads: int | None = None,
) -> Artifact:
    """Open an artifact by path or file descriptor (which stays the caller's).

    With `verify` every chunk is hashed, on `threads` threads (default: all cores), before any metadata is parsed;
    without it the caller has done so for this very file. `expected_root` is the 64-byte digest that a signed document
    names. Raises AifbError: the codes of tree.read_header, root_mismatch, bad_padding, and of checks.parse_metadata.
    """
    fd = source if isinstance(source, int) else os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _open_fd(fd, expected_root, verify, threads)
    finally:
        if not isinstance(source, int):
            os.close(fd)


def _open_fd(fd: int, expected_root: bytes | None, verify: bool, threads: int | None) -> Artifact:
    raw, header = tree.read_header(fd)
    if expected_root is not None and not compare_digest(header.root, expected_root):
        raise AifbError(
            "root_mismatch", "The file's root is not the digest that was asked for: it is another artifact."
        )
    if verify:
        leaves = tree.leaves_of_fd(fd, header.total_bytes, threads=threads)
        if not compare_digest(tree.root(raw[:PREFIX_BYTES], tree.top(leaves)), header.root):
            raise AifbError("root_mismatch", "The file's bytes do not lead to its root: it is damaged, fetch it again.")
    mapped = mmap.mmap(fd, header.total_bytes, access=mmap.ACCESS_READ)
    try:
        end = HEADER_BYTES + header.metadata_bytes
        if any(mapped[end : header.data_offset]):
            raise AifbError("bad_padding", "The bytes between metadata and data are not all zero.")
        return Artifact(mapped, header, checks.parse_metadata(mapped[HEADER_BYTES:end], header.data_bytes))
    except BaseException:
        mapped.close()
        raise
