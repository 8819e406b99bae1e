"""GPU series: what charts, detectors and alerts read, and how history gets in.

A GPU is named by its `Gpu.number`. The same calls give the same rows on TimescaleDB and on plain partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from numpy.typing import NDArray

from apps.observability import packed, rollups, store
from apps.observability.rollups import DAY, HOUR, LEVELS, MINUTE, floor, rolled_until
from apps.observability.rows import EPOCH
from protocol.metrics import GPU, GPU_BY_NAME, Kind, Metric

__all__ = [
    "GpuSeries",
    "Latest",
    "copy_history",
    "gpu_points",
    "gpus_heard",
    "latest",
    "minute_matrix",
    "rolled_until",
]

# Steps that people count in.
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 604_800)
RAW_GPU_SECONDS = 30_000  # more seconds × GPUs than this are read from minutes, unless a finer step is asked for
RECENT = 3 * MINUTE  # what `latest` still calls new, behind the watermark
PROBED_GPUS = 4_096  # up to so many are looked up one by one in the raw samples
Floats = NDArray[np.float32]


class GpuSeries(NamedTuple):
    """Points of one GPU's metric by time: the beginning of each bucket in Unix seconds; its mean, lowest, highest.

    Buckets without a value are absent. A counter has its last value in all three, flags and codes theirs.
    """

    gpu: int
    times: NDArray[np.float64]  # (n,)
    mean: Floats  # (n,)
    low: Floats  # (n,)
    high: Floats  # (n,)


class Latest(NamedTuple):
    """The newest that is known of a GPU: values by metric, NaN where it wasn't measured."""

    time: datetime
    values: Mapping[str, float]
    simulated: bool


def gpu_points(
    metric: str,
    gpus: Sequence[int],
    since: datetime,
    until: datetime,
    *,
    step: timedelta | None = None,
    max_points: int = 600,
) -> list[GpuSeries]:
    """Return the points of each GPU in [since, until), in the order of `gpus`.

    Buckets are `step` long, else as short as at most `max_points` of them allow; the first one is whole. Read from the
    coarsest rows that fit, and from finer ones where those aren't made yet; where fine ones are gone, from coarser.
    """
    if not gpus or since >= until:
        return [_series(gpu, []) for gpu in gpus]
    step = step or _step(since, until, len(gpus), max_points)
    layers = _layers(step, floor(since, step), until)
    text = _points_sql(GPU_BY_NAME[metric], tuple(layers))
    bounds = {f"{table}_{end}": moment for table, span in layers.items() for end, moment in span.items()}
    by_gpu: dict[int, list[tuple[Any, ...]]] = {gpu: [] for gpu in gpus}
    for gpu, *point in store.fetch(text, _Point, gpus=list(gpus), step=step, **bounds):
        by_gpu[gpu].append(tuple(point))
    return [_series(gpu, by_gpu[gpu]) for gpu in gpus]


class _Point(NamedTuple):
    gpu: int
    time: float
    mean: float
    low: float
    high: float


def _series(gpu: int, points: list[tuple[Any, ...]]) -> GpuSeries:
    table = np.array(points, np.float64).reshape(-1, 4)  # (n, 4)
    values = table[:, 1:].astype(np.float32)
    return GpuSeries(gpu, table[:, 0], values[:, 0], values[:, 1], values[:, 2])


def _step(since: datetime, until: datetime, gpus: int, max_points: int) -> timedelta:
    span_s = (until - since).total_seconds()
    least_s = span_s / max_points
    if span_s * gpus > RAW_GPU_SECONDS:
        least_s = max(least_s, 60)
    # one more bucket than fits, since the first begins before `since`
    return timedelta(seconds=next((step_s for step_s in STEPS_S if step_s >= least_s), STEPS_S[-1]))


def _layers(step: timedelta, since: datetime, until: datetime) -> dict[str, dict[str, datetime]]:
    """Say which table is read from when till when, coarsest first; together they cover [since, until) once.

    A table is read from where the finer one's retention begins, or from `since` when its buckets are fine enough for
    the step; and up to its watermark.
    """
    keep = settings.FARRIER
    horizon = rolled_until()
    begins = {
        "gpu_day": EPOCH,
        "gpu_hour": horizon - keep.hour_retention_d * DAY,
        "gpu_minute": horizon - keep.minute_retention_d * DAY,
        "gpu_sample": horizon - keep.raw_retention_h * HOUR,
    }
    found: dict[str, dict[str, datetime]] = {}
    for level in reversed(LEVELS):
        fits = step % level.width == timedelta(0)
        stop = rolled_until(level.target)
        if not fits:
            stop = min(stop, level.floor(max(begins[level.source], EPOCH)))
        stop = min(stop, until)
        if since < stop:
            found[level.target] = {"since": since, "until": stop}
            since = stop
    if since < until:
        found["gpu_sample"] = {"since": since, "until": until}
    return found


def _points_sql(metric: Metric, tables: Sequence[str]) -> str:
    name = metric.name
    parts = []
    for table in tables:
        gauge = metric.kind is Kind.GAUGE
        rolled = gauge and table != "gpu_sample"
        parts.append(
            store.sql("gpu_points_layer").format(
                table=table,
                total=f"{name}_sum::float8" if rolled else f"{name}::float8",
                count=f"{name}_count" if rolled else "1",
                low=f"{name}_min" if rolled else name,
                high=f"{name}_max" if rolled else name,
                present=f"{name}_count > 0" if rolled else f"{name} IS NOT NULL",
            )
        )
    return store.sql("gpu_points").format(layers="UNION ALL\n".join(parts), **_COMBINED[metric.kind])


_COMBINED = {
    Kind.GAUGE: {"mean": "sum(total) / sum(count)", "low": "min(low)", "high": "max(high)"},
    Kind.COUNTER: dict.fromkeys(("mean", "low", "high"), "(max(ARRAY[date_part('epoch', time), total]))[2]"),
    Kind.FLAGS: dict.fromkeys(("mean", "low", "high"), "bit_or(low)"),
    Kind.CODE: dict.fromkeys(("mean", "low", "high"), "max(high)"),
}


def minute_matrix(metric: str, gpus: Sequence[int], first_minute: int, last_minute: int) -> Floats:
    """Return the means of closed minutes, (last - first + 1, GPUs), NaN where nothing was measured.

    Minutes are counted from 1970 (Unix seconds / 60); both ends are included. A minute that isn't closed is all NaN.
    """
    found = np.full((max(last_minute - first_minute + 1, 0), len(gpus)), np.nan, np.float32)
    if not found.size:
        return found
    name = GPU_BY_NAME[metric].name
    gauge = GPU_BY_NAME[metric].kind is Kind.GAUGE
    text = store.sql("minute_matrix").format(
        value=f"({name}_sum / {name}_count)::real" if gauge else f"{name}::real",
        present=f"{name}_count > 0" if gauge else f"{name} IS NOT NULL",
    )
    until = min(EPOCH + (last_minute + 1) * MINUTE, rolled_until())
    rows = _copy_out(text, {"gpus": list(gpus), "since": EPOCH + first_minute * MINUTE, "until": until})
    order = np.argsort(np.asarray(gpus, np.int64), kind="stable")
    column = order[np.searchsorted(np.asarray(gpus, np.int64), rows["gpu"], sorter=order)]
    found[rows["minute"] - first_minute, column] = rows["value"]
    return found


_WIRE = np.dtype([("minute", ">i4"), ("gpu", ">i4"), ("value", ">f4")])
_BEFORE_BYTES, _TRAILER_BYTES = 19 + 2 + 4, 2  # header, count of fields, length of the field


def _copy_out(text: str, parameters: Mapping[str, Any]) -> NDArray[Any]:
    """Return the (minute, gpu, value) rows that a query packs into one value, the only one of its one row.

    psycopg hands out a COPY row by row, and that takes longer than all else: so there is one. It holds 1 GB at most.
    """
    statement = f"COPY ({text}) TO STDOUT (FORMAT BINARY)"
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor, cursor.copy(statement, parameters) as copy:
        raw = b"".join(copy)
    return np.frombuffer(raw[_BEFORE_BYTES:-_TRAILER_BYTES], _WIRE)  # nothing when it is NULL


def latest(gpus: Sequence[int]) -> dict[int, Latest]:
    """Return the newest values of those GPUs that were heard in the last few minutes.

    Of a few thousand GPUs the newest sample, of more than that the newest closed minute's means.
    """
    if not gpus:
        return {}
    few = len(gpus) <= PROBED_GPUS
    text = store.sql("latest_samples" if few else "latest_minutes").format(
        values=", ".join(f"({metric.name if few else _mean(metric)})::float8" for metric in GPU)
    )
    found = {}
    for row in store.fetch(text, _LatestRow, gpus=list(gpus), since=rolled_until() - RECENT):
        numbers = (float("nan") if value is None else float(value) for value in row.measured)
        found[row.gpu] = Latest(row.time, dict(zip(GPU_BY_NAME, numbers, strict=True)), row.simulated)
    return found


class _LatestRow(NamedTuple):
    gpu: int
    time: datetime
    simulated: bool
    measured: list[float | None]  # in the order of protocol.metrics.GPU


def _mean(metric: Metric) -> str:
    name = metric.name
    return f"{name}_sum / NULLIF({name}_count, 0)" if metric.kind is Kind.GAUGE else name


def gpus_heard(since: datetime) -> set[int]:
    """Return the numbers of the GPUs that have a sample since then."""
    return {number for (number,) in store.fetch(store.sql("gpus_heard"), _Number, since=since)}


class _Number(NamedTuple):
    number: int


def copy_history(gpu: int, columns: Mapping[str, NDArray[Any]], times: NDArray[Any], simulated: bool) -> None:
    """Put minutes of one GPU's past straight into the rollups: one value a minute and metric, each one sample.

    `times` are Unix seconds or datetime64, ascending, one a minute. What the GPU has between the first and the last of
    them is replaced, so a second time changes nothing. It must lie before the first live minute: from then on a
    minute is made of its samples. Runs as the tables' owner.
    """
    if not len(times):
        return
    seconds = times.astype("datetime64[s]").astype(np.int64) if times.dtype.kind == "M" else times.astype(np.int64)
    rows = packed.gpu_minutes(gpu, seconds // 60 * packed.MINUTE_US, simulated, columns)
    first, last = (EPOCH + timedelta(seconds=int(second) // 60 * 60) for second in (seconds[0], seconds[-1]))
    with transaction.atomic(using=store.owner()):
        store.ensure_days("gpu_minute", rows.days, using=store.owner())
        table = store.table_of("gpu_minute")
        with connections[store.owner()].cursor() as cursor:
            forget = store.sql("forget_gpu_span").format(target=table)
            cursor.execute(forget, {"gpu": gpu, "first": first, "last": last})
        store.copy_bytes(table, rows.columns, rows.data, using=store.owner())
        for level in LEVELS[1:]:
            begin = level.floor(first)
            count = (last - begin) // level.width + 1
            buckets = {begin + n * level.width: {gpu} for n in range(count)}
            rollups.roll_pairs(level, buckets, store.table_of(level.target))
