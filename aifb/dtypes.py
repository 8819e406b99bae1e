"""Element types: their names, widths, and how numpy sees them."""

from dataclasses import dataclass
from math import prod

import numpy as np

from aifb import metadata_pb2 as pb
from aifb.errors import AifbError


@dataclass(frozen=True)
class DTypeInfo:
    """One element type. `view` is the numpy type of its bytes, which for types that numpy lacks is a plain integer."""

    name: str
    number: pb.DType
    bits: int
    view: str


_ALL = (
    DTypeInfo("bool", pb.BOOL, 8, "?"),
    DTypeInfo("uint8", pb.UINT8, 8, "u1"),
    DTypeInfo("int8", pb.INT8, 8, "i1"),
    DTypeInfo("int16", pb.INT16, 16, "<i2"),
    DTypeInfo("int32", pb.INT32, 32, "<i4"),
    DTypeInfo("int64", pb.INT64, 64, "<i8"),
    DTypeInfo("float16", pb.FLOAT16, 16, "<f2"),
    DTypeInfo("bfloat16", pb.BFLOAT16, 16, "<u2"),
    DTypeInfo("float32", pb.FLOAT32, 32, "<f4"),
    DTypeInfo("float64", pb.FLOAT64, 64, "<f8"),
    DTypeInfo("float8_e4m3", pb.FLOAT8_E4M3, 8, "u1"),
    DTypeInfo("float8_e5m2", pb.FLOAT8_E5M2, 8, "u1"),
    DTypeInfo("int4", pb.INT4, 4, "u1"),
)
BY_NAME: dict[str, DTypeInfo] = {info.name: info for info in _ALL}
BY_NUMBER: dict[int, DTypeInfo] = {int(info.number): info for info in _ALL}


def by_name(name: str) -> DTypeInfo:
    """Look an element type up by name; raises AifbError(unknown_dtype)."""
    if name not in BY_NAME:
        raise AifbError("unknown_dtype", f"The dtype {name!r} is unknown; known are {', '.join(BY_NAME)}.")
    return BY_NAME[name]


def by_number(number: int, where: str) -> DTypeInfo:
    """Look an element type up by its number in the metadata; raises AifbError(unknown_dtype)."""
    if number not in BY_NUMBER:
        raise AifbError("unknown_dtype", f"{where} has the unknown dtype number {number}.")
    return BY_NUMBER[number]


def byte_length(info: DTypeInfo, shape: tuple[int, ...]) -> int:
    """Bytes that a dense tensor of this type and shape takes."""
    return -(-prod(shape) * info.bits // 8)


def of_numpy(dtype: np.dtype[np.generic]) -> DTypeInfo:
    """The element type of a numpy array; raises AifbError(unknown_dtype)."""
    return by_name(dtype.name)
