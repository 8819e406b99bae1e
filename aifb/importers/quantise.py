"""Weight-only int8: symmetric, one scale per row or one per tensor. The graph stays as it is: weights come back as
floats when the engine loads them. Vectors (biases, norms) stay float32: they are small and sensitive."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from aifb import metadata_pb2 as pb
from aifb.errors import AifbError
from aifb.tensors import TensorData

_LIMIT = 127.0


class Quantised(NamedTuple):
    """Tensors with their scale tensors, and how each quantised one is to be read."""

    tensors: dict[str, TensorData]
    quantisation: dict[str, pb.Quantisation]


def int8_per_row(tensors: Mapping[str, TensorData]) -> Quantised:
    """Round float32 tensors of two and more dimensions to int8 with a scale for each index of the first dimension."""
    return _int8(tensors, pb.Quantisation.PER_ROW, lambda flat: np.abs(flat).max(axis=1, initial=0.0))


def int8_per_tensor(tensors: Mapping[str, TensorData]) -> Quantised:
    """Round float32 tensors of two and more dimensions to int8 with one scale each."""
    return _int8(tensors, pb.Quantisation.PER_TENSOR, lambda flat: np.abs(flat).max(initial=0.0).reshape(1))


SCHEMES: dict[str, Callable[[Mapping[str, TensorData]], Quantised]] = {
    "int8_per_row": int8_per_row,
    "int8_per_tensor": int8_per_tensor,
}


def dequantise(tensor: TensorData, scale: TensorData, quantisation: pb.Quantisation) -> np.ndarray:
    """The float32 values that a quantised int8 tensor stands for: stored integer times scale."""
    shape = [1] * len(tensor.shape)
    if quantisation.scheme == pb.Quantisation.PER_ROW:
        shape[quantisation.axis] = -1
    values: np.ndarray = tensor.array().astype(np.float32) * scale.array().reshape(shape)
    return values


def _int8(
    tensors: Mapping[str, TensorData],
    scheme: pb.Quantisation.Scheme,
    peak_of: Callable[[np.ndarray], np.ndarray],
) -> Quantised:
    made: dict[str, TensorData] = {}
    quantisation: dict[str, pb.Quantisation] = {}
    for name, tensor in tensors.items():
        if tensor.alias_of:
            continue
        if tensor.dtype != "float32" or len(tensor.shape) < 2:
            made[name] = tensor
            continue
        scale_name = f"{name}.scale"
        if scale_name in tensors:
            raise AifbError("not_importable", f"The tensor {scale_name!r} exists already: rename it before quantising.")
        values = tensor.array()
        flat = values.reshape(tensor.shape[0], -1)  # (rows, everything else)
        scale = (peak_of(flat) / _LIMIT).astype(np.float32)
        scale[scale == 0] = 1.0  # all zeros: any scale gives them back
        made[scale_name] = TensorData.from_numpy(scale)
        rounded = np.clip(np.rint(flat / scale.reshape(-1, 1)), -_LIMIT, _LIMIT).astype(np.int8)
        made[name] = TensorData.from_numpy(rounded.reshape(tensor.shape))
        quantisation[name] = pb.Quantisation(scheme=scheme, scale_tensor=scale_name, logical_dtype=pb.FLOAT32)
    made |= {name: TensorData.alias(t.alias_of, made[t.alias_of]) for name, t in tensors.items() if t.alias_of}
    return Quantised(made, quantisation)
