"""A loaded artifact as the server sees it: public inputs and outputs, and batches of rows in between."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aifb import metadata_pb2 as pb
from node.engine.batching import batch_limits, collate, shape_key
from node.engine.errors import LoadError
from node.engine.loader import Loaded
from node.engine.postprocess import Outputs, make_postprocess
from node.engine.preprocess import Prepared, Row, make_preprocess

# OIP datatypes and the numpy types that JSON numbers become.
NUMPY_OF = {
    "BOOL": "?", "UINT8": "u1", "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2",
    "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
OIP_OF = {np.dtype(code): name for name, code in NUMPY_OF.items()}


@dataclass(frozen=True)
class Port:
    """A public input or output; -1 in `shape` is any size, the first dimension is the rows'."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class BatchResult:
    """Outputs of a batch of `rows` rows and what it took: compute and postprocess in seconds."""

    outputs: Outputs
    rows: int
    compute_s: float
    postprocess_s: float


@dataclass(frozen=True)
class Limits:
    """Largest batch, and most rows of one request."""

    batch_rows: int = 16
    request_rows: int = 128


@dataclass
class ServedModel:
    """What an engine serves: one entry point of one artifact."""

    loaded: Loaded
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        entry = self.loaded.artifact.entry_point("infer")
        self.inputs = tuple(_port(port) for port in entry.inputs)
        self.outputs = tuple(_port(port) for port in entry.outputs)
        self._graph_inputs = self.loaded.plan.inputs
        self._min_rows, most = batch_limits(self._graph_inputs)
        self.batch_rows = max(1, min(self.limits.batch_rows, most))
        self._preprocess = make_preprocess(self.loaded.artifact, entry.preprocess)
        self._postprocess = make_postprocess(self.loaded.artifact, entry.postprocess)

    def prepare(self, inputs: Mapping[str, Any]) -> Prepared:
        """Public inputs, checked by the server, as rows for the graph. Raises RequestError."""
        prepared = self._preprocess(inputs)
        # each row alone: a shape that the graph refuses must not spoil the batch of others
        for row in prepared.rows[:1]:
            collate([row], self._graph_inputs, self._preprocess.padding, self._min_rows)
        return prepared

    def shape_key(self, row: Row) -> tuple[tuple[int, ...], ...]:
        """Rows with equal keys may share a batch."""
        return shape_key(row, self._preprocess.padding)

    def infer(self, rows: Sequence[Row]) -> BatchResult:
        """Run one batch of 1 to `batch_rows` rows of one shape key; the result has a row for each, in order."""
        started_s = time.perf_counter()
        batch = collate(rows, self._graph_inputs, self._preprocess.padding, self._min_rows)
        results = self.loaded.plan.run(batch)
        arrays = {name: tensor.numpy()[: len(rows)] for name, tensor in results.items()}
        computed_s = time.perf_counter()
        outputs = self._postprocess(arrays)
        ended_s = time.perf_counter()
        return BatchResult(outputs, len(rows), computed_s - started_s, ended_s - computed_s)

    def example(self) -> dict[str, Any]:
        """Public inputs of one row that mean nothing, for the warm-up."""
        least = {spec.name: [dim.min for dim in spec.dims] for spec in self._graph_inputs}
        values: dict[str, Any] = {}
        for port in self.inputs:
            if port.datatype == "BYTES":
                values[port.name] = ["warm-up"]
                continue
            sizes = zip(port.shape, least.get(port.name, port.shape), strict=True)
            shape = [1, *[size if size >= 0 else max(low, 1) for size, low in sizes][1:]]
            values[port.name] = np.zeros(shape, NUMPY_OF[port.datatype])
        return values

    def warm_up(self) -> float:
        """Run one inference of a single row and one of a full batch; returns the milliseconds.

        Raises LoadError `warmup_failed` where an output isn't what the entry point promises.
        """
        started_s = time.perf_counter()
        row = self.prepare(self.example()).rows[0]
        for count in (1, self.batch_rows):
            outputs = self.infer([row] * count).outputs
            for port in self.outputs:
                _check_output(port, outputs.values.get(port.name), count)
        return (time.perf_counter() - started_s) * 1000


def _port(port: pb.Port) -> Port:
    if port.datatype != "BYTES" and port.datatype not in NUMPY_OF:
        raise LoadError(
            "unsupported_datatype", f"Port {port.name!r} is {port.datatype}, which this engine can't serve."
        )
    return Port(port.name, port.datatype, tuple(port.shape))


def _check_output(port: Port, value: Any, rows: int) -> None:
    if value is None:
        raise LoadError("warmup_failed", f"The model doesn't make its output {port.name!r}: pack it again.")
    if isinstance(value, list):
        is_right = port.datatype == "BYTES" and len(value) == rows
    else:
        sizes = zip(value.shape[1:], port.shape[1:], strict=False)
        is_right = (
            OIP_OF.get(value.dtype) == port.datatype
            and len(value) == rows
            and value.ndim == len(port.shape)
            and all(size == wanted or wanted == -1 for size, wanted in sizes)
        )
        if is_right and not np.isfinite(value).all():
            raise LoadError("warmup_failed", f"The model's output {port.name!r} is not finite in a warm-up inference.")
    if not is_right:
        raise LoadError("warmup_failed", f"The model's output {port.name!r} is not the {port.datatype} it promises.")
