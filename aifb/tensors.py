"""Tensors as the format sees them: a type, a shape, and little-endian bytes in row-major order."""

import sys
from dataclasses import dataclass

import numpy as np

from aifb import dtypes
from aifb.errors import AifbError

if sys.byteorder != "little":
    raise ImportError("AIFB artifacts are little-endian and are mapped as they are: this machine is big-endian")


@dataclass(frozen=True)
class TensorData:
    """A tensor's type, shape and bytes; one that shares the bytes of another names it in `alias_of` and has none."""

    dtype: str
    shape: tuple[int, ...]
    buffer: bytes | memoryview
    alias_of: str = ""

    @classmethod
    def from_numpy(cls, array: np.ndarray, *, dtype: str | None = None) -> "TensorData":
        """Wrap an array; `dtype` names what its bits mean where numpy has no such type (bfloat16 as uint16)."""
        little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
        flat = np.ascontiguousarray(little).reshape(-1).view(np.uint8)
        return cls(dtype or dtypes.of_numpy(array.dtype).name, array.shape, flat.data)

    @classmethod
    def alias(cls, target: str, like: "TensorData") -> "TensorData":
        """A second name for the tensor called `target`, whose data is `like`."""
        return cls(like.dtype, like.shape, b"", target)

    @property
    def byte_length(self) -> int:
        """Bytes in the data region: zero for an alias."""
        return 0 if self.alias_of else dtypes.byte_length(dtypes.by_name(self.dtype), self.shape)

    def check(self, name: str) -> None:
        """Raise AifbError(bad_shape) unless the buffer is as long as type and shape demand."""
        if memoryview(self.buffer).nbytes != self.byte_length:
            raise AifbError(
                "bad_shape", f"Tensor {name!r} has {memoryview(self.buffer).nbytes} bytes, not {self.byte_length}."
            )

    def array(self) -> np.ndarray:
        """The bytes as a read-only numpy array: in its shape, or for int4 as packed bytes, flat."""
        info = dtypes.by_name(self.dtype)
        flat = np.frombuffer(self.buffer, dtype=info.view)
        return flat if info.bits < 8 else flat.reshape(self.shape)
