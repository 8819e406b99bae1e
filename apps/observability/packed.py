"""From packed samples to the bytes of a binary COPY, by numpy alone; pure. No row becomes a Python object.

What can't be stored is left out and counted; a value that is no finite number becomes NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from apps.observability.rows import EPOCH, Window
from protocol import metrics
from protocol.metrics import Kind
from protocol.telemetry_pb2 import EngineSamples, GpuSamples

POSTGRES_EPOCH_US = 946_684_800_000_000  # 2000-01-01, in Unix microseconds
MINUTE_US = 60_000_000
DAY_US = 86_400_000_000
BLOCK_SOURCES = 64  # GPUs or engines in a block
VALUE_MAX = 1e30  # no measurement is greater, and a day's sum of them still is a float4
INT4_END = float(1 << 31)
_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TRAILER = b"\xff\xff"
Array = NDArray[Any]


@dataclass(frozen=True)
class Copyable:
    """Rows of one table, encoded. `minutes`: which minutes they fall into, with the numbers of the GPUs."""

    columns: tuple[str, ...] = ()
    data: bytes = b""
    rows: int = 0
    dropped: int = 0
    days: frozenset[date] = frozenset()
    minutes: Mapping[datetime, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Block:
    """One message's good rows: Unix microseconds on our clock, who, and values by metric."""

    times_us: Array  # (n,) int64
    sources: Array  # (n,) int32 GPU numbers, or 16 bytes of an id
    simulated: bool
    values: Mapping[str, Array]  # (n,) float32 each


def gpu_samples(messages: Iterable[GpuSamples], numbers: Mapping[str, int], window: Window) -> Copyable:
    """Return rows for gpu_sample. `numbers` has the node's own GPUs, by UUID; what others are said to be is dropped."""
    blocks, dropped = [], 0
    for message in messages:
        known = np.array([numbers.get(uuid, 0) for uuid in message.gpus], np.int32)
        block, bad = _block(message, message.gpu, known, known != 0, window, simulated=message.simulated)
        dropped += bad
        if block is not None:
            blocks.append(block)
    if not blocks:
        return Copyable(dropped=dropped)
    times_us = np.concatenate([block.times_us for block in blocks])
    gpus = np.concatenate([block.sources for block in blocks])
    simulated = np.concatenate([np.full(len(block.times_us), block.simulated, np.uint8) for block in blocks])
    metric_values = _columns(blocks, metrics.GPU)
    fields = {"time": _postgres(times_us), "gpu": gpus.astype(">i4"), "simulated": simulated} | metric_values
    return Copyable(tuple(fields), encode(fields), len(gpus), dropped, _days(times_us), _minutes(times_us, gpus))


def engine_samples(messages: Iterable[EngineSamples], window: Window) -> Copyable:
    """Return rows for engine_sample; each says whose node's they are, so any deployment id will do."""
    blocks, dropped = [], 0
    for message in messages:
        ids = [_uuid_bytes(text) for text in message.deployments]
        good = np.array([raw is not None for raw in ids], bool)
        known = np.array([raw or bytes(16) for raw in ids], "V16")
        block, bad = _block(message, message.deployment, known, good, window)
        dropped += bad
        if block is not None:
            blocks.append(block)
    if not blocks:
        return Copyable(dropped=dropped)
    times_us = np.concatenate([block.times_us for block in blocks])
    node = np.full(len(times_us), np.void(window.node_id.bytes))
    deployments = np.concatenate([block.sources for block in blocks])
    values = _columns(blocks, metrics.ENGINE)
    fields = {"time": _postgres(times_us), "node_id": node, "deployment_id": deployments} | values
    return Copyable(tuple(fields), encode(fields), len(times_us), dropped, _days(times_us))


def gpu_minutes(gpu: int, minutes_us: Array, simulated: bool, values: Mapping[str, Array]) -> Copyable:
    """Return rows for gpu_minute of one GPU, one sample a minute: what history is made of."""
    rows = len(minutes_us)
    ones = np.ones(rows, ">i4")
    fields = {
        "time": _postgres(minutes_us),
        "gpu": np.full(rows, gpu, ">i4"),
        "samples": ones,
        "simulated": np.full(rows, simulated, np.uint8),
    }
    for metric in metrics.GPU:
        given = np.asarray(values.get(metric.name, np.full(rows, np.nan)), np.float32)
        if metric.kind is Kind.GAUGE:
            fields[f"{metric.name}_count"] = _is_number(given).astype(">i4")
            fields |= {f"{metric.name}_{part}": given for part in ("sum", "min", "max")}
        else:
            fields[metric.name] = _typed(given, metric.kind)
    return Copyable(tuple(fields), encode(fields), rows, 0, _days(minutes_us))


def _block(
    message: GpuSamples | EngineSamples,
    index: bytes,
    known: Array,
    good: Array,
    window: Window,
    *,
    simulated: bool = False,
) -> tuple[_Block | None, int]:
    """Return the rows of one message that can be stored, and how many can't. `index[i]` names the source of row i."""
    rows = len(index)
    columns = {column.name: column.values for column in message.columns}
    lengths = {len(message.time_unix_us) // 8, *(len(values) // 4 for values in columns.values())}
    ragged = len(message.time_unix_us) % 8 or any(len(values) % 4 for values in columns.values())
    if ragged or lengths != {rows} or len(known) > BLOCK_SOURCES:
        return None, max(rows, len(message.time_unix_us) // 8, 1)
    if not len(known) or not rows:
        return None, rows
    low_us, high_us = window.bounds_us()
    times_us = np.frombuffer(message.time_unix_us, "<i8")
    source = np.frombuffer(index, np.uint8)
    inside = np.minimum(source, len(known) - 1)
    keep = (source < len(known)) & good[inside] & (times_us >= low_us) & (times_us <= high_us)
    values = {name: np.frombuffer(raw, "<f4")[keep] for name, raw in columns.items()}
    block = _Block(times_us[keep] + window.offset_us, known[inside[keep]], simulated, values)
    kept = len(block.times_us)
    return (block if kept else None), rows - kept


def _columns(blocks: Sequence[_Block], listed: Iterable[metrics.Metric]) -> dict[str, Array]:
    """Return the columns that any block has, in the metrics' order; rows of blocks without it hold NaN."""
    found: dict[str, Array] = {}
    for metric in listed:
        if not any(metric.name in block.values for block in blocks):
            continue
        parts = [block.values.get(metric.name, np.full(len(block.times_us), np.nan, "<f4")) for block in blocks]
        found[metric.name] = _typed(np.concatenate(parts), metric.kind)
    return found


def _typed(values: Array, kind: Kind) -> Array:
    """Flags and codes are integers in the table; a masked array, since integers have no NaN."""
    if kind not in {Kind.FLAGS, Kind.CODE}:
        return values
    good = (values >= 0) & (values < INT4_END)
    return np.ma.array(np.where(good, values, 0).astype(">i4"), mask=~good)


def _is_number(values: Array) -> Array:
    return np.abs(values) < VALUE_MAX  # NaN and infinity are not


def encode(fields: Mapping[str, Array]) -> bytes:
    """Return the rows in PostgreSQL's binary COPY format, a field each.

    Every row is laid out at full width; then the bytes of NULLs are cut out in one go.
    """
    first = next(iter(fields.values()))
    layout: list[tuple[str, str]] = [("fields", ">i2")]
    for name, values in fields.items():
        layout += [(f"{name} length", ">i4"), (name, _wire_type(values))]
    table = np.empty(len(first), np.dtype(layout))
    table["fields"] = len(fields)
    holes = []
    for name, values in fields.items():
        width = table.dtype[name].itemsize
        table[f"{name} length"] = width
        table[name] = np.ma.getdata(values)
        missing = _missing(values)
        if missing is not None and missing.any():
            table[f"{name} length"][missing] = -1
            offset = table.dtype.fields[name][1]  # type: ignore[index]  # a structured type has fields
            holes.append((missing, offset, width))
    if not holes:
        return b"".join((_HEADER, table.tobytes(), _TRAILER))
    raw = table.view(np.uint8).reshape(len(table), table.dtype.itemsize)
    kept = np.ones(raw.shape, bool)
    for missing, offset, width in holes:
        kept[missing, offset : offset + width] = False
    return b"".join((_HEADER, raw[kept].tobytes(), _TRAILER))


def _wire_type(values: Array) -> str:
    return ">f4" if values.dtype.kind == "f" else values.dtype.str


def _missing(values: Array) -> Array | None:
    if isinstance(values, np.ma.MaskedArray):
        return np.ma.getmaskarray(values)
    return ~_is_number(values) if values.dtype.kind == "f" else None


def _postgres(times_us: Array) -> Array:
    return (times_us - POSTGRES_EPOCH_US).astype(">i8")


def _days(times_us: Array) -> frozenset[date]:
    return frozenset((EPOCH + timedelta(days=int(day))).date() for day in np.unique(times_us // DAY_US))


def _minutes(times_us: Array, gpus: Array) -> dict[datetime, list[int]]:
    minutes = times_us // MINUTE_US
    return {
        EPOCH + timedelta(minutes=int(minute)): np.unique(gpus[minutes == minute]).tolist()
        for minute in np.unique(minutes)
    }


def _uuid_bytes(text: str) -> bytes | None:
    try:
        return UUID(text).bytes
    except ValueError:
        return None
