"""The artifact's element types as torch knows them."""

from __future__ import annotations

import torch

from aifb import metadata_pb2 as pb
from node.engine.errors import LoadError

TORCH: dict[int, torch.dtype] = {
    pb.BOOL: torch.bool,
    pb.UINT8: torch.uint8,
    pb.INT8: torch.int8,
    pb.INT16: torch.int16,
    pb.INT32: torch.int32,
    pb.INT64: torch.int64,
    pb.FLOAT16: torch.float16,
    pb.BFLOAT16: torch.bfloat16,
    pb.FLOAT32: torch.float32,
    pb.FLOAT64: torch.float64,
    pb.FLOAT8_E4M3: torch.float8_e4m3fn,
    pb.FLOAT8_E5M2: torch.float8_e5m2,
}


def torch_dtype(number: int, where: str) -> torch.dtype:
    """The torch type of a metadata dtype number; raises LoadError `unsupported_dtype`."""
    if number not in TORCH:
        name = pb.DType.Name(number) if number in pb.DType.values() else str(number)
        raise LoadError("unsupported_dtype", f"{where} has the dtype {name}, which this engine can't compute with.")
    return TORCH[number]
