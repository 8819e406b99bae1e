"""One block for weights that are computed at load, so that it can be made read-only and sealed as a whole."""

from __future__ import annotations

import math
import mmap

import numpy as np
import torch

ALIGNMENT_BYTES = 64  # a cache line, and what vectorised kernels like best


def padded(size_bytes: int) -> int:
    """`size_bytes` rounded up to the alignment."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class WeightArena:
    """Anonymous memory of a size known beforehand, handed out front to back."""

    def __init__(self, size_bytes: int) -> None:
        self._map = mmap.mmap(-1, max(size_bytes, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._used_bytes = 0

    @property
    def span(self) -> tuple[int, int]:
        """(address, length in bytes) of the whole block."""
        return np.frombuffer(self._map, np.uint8).ctypes.data, len(self._map)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of uninitialised memory; raises MemoryError past the end."""
        count = math.prod(shape)
        size = count * dtype.itemsize
        if self._used_bytes + size > len(self._map):
            raise MemoryError(f"the weight arena of {len(self._map)} bytes has no room for {size} more")
        start = self._used_bytes
        self._used_bytes += padded(size)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=start).view(shape)
