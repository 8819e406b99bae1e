"""Rows of different requests as one batch of the graph's inputs, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from node.engine.compiler.plan import InputSpec
from node.engine.errors import LoadError, RequestError
from node.engine.preprocess import Row


def batch_limits(inputs: Sequence[InputSpec]) -> tuple[int, int]:
    """(min, max) rows of a batch: the range of the first dimension, which all inputs must share.

    Raises LoadError `no_batch_dimension`.
    """
    first = {spec.dims[0] for spec in inputs if spec.dims}
    if len(first) != 1 or not all(spec.dims for spec in inputs):
        message = "The graph's inputs don't share a batch dimension as their first: export the model with one."
        raise LoadError("no_batch_dimension", message)
    dim = first.pop()
    return dim.min, dim.max


def shape_key(row: Row, padding: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    """Rows with equal keys fit into one batch; inputs that can be padded don't count."""
    return tuple(array.shape for name, array in row.items() if name not in padding)


def collate(
    rows: Sequence[Row], inputs: Sequence[InputSpec], padding: Mapping[str, int], min_rows: int
) -> dict[str, torch.Tensor]:
    """Graph inputs (b, …) of `rows`, which have equal shape keys; b is at least `min_rows`: the last row is repeated.

    Inputs with padding are filled up to the longest row, and at least to the least size that their dimension takes.
    Raises RequestError `bad_shape` where a dimension isn't one that the graph takes.
    """
    filled = [*rows, *[rows[-1]] * (min_rows - len(rows))]
    batch: dict[str, torch.Tensor] = {}
    for spec in inputs:
        arrays = [row[spec.name] for row in filled]
        if spec.name in padding:
            array = _pad(arrays, padding[spec.name], spec)
        else:
            array = np.stack(arrays)
        _check_sizes(spec, array.shape)
        batch[spec.name] = torch.from_numpy(array)
    return batch


def _pad(arrays: Sequence[np.ndarray], value: int, spec: InputSpec) -> np.ndarray:
    longest = max(spec.dims[1].min, *(len(array) for array in arrays), 0)
    padded = np.full((len(arrays), longest), value, arrays[0].dtype)  # (b, t)
    for index, array in enumerate(arrays):
        padded[index, : len(array)] = array
    return padded


def _check_sizes(spec: InputSpec, shape: tuple[int, ...]) -> None:
    for position, (size, dim) in enumerate(zip(shape, spec.dims, strict=True)):
        # the batch dimension is ours, the others are the client's
        if position and not dim.min <= size <= dim.max:
            limits = f"{dim.min}" if dim.min == dim.max else f"{dim.min} to {dim.max}"
            message = f"Input {spec.name!r} has size {size} in dimension {position}; the model takes {limits}."
            raise RequestError(400, "wrong_shape", message)
