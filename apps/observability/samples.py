"""GPU series. This branch keeps them in memory; the store's module of the same calls takes this one's place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np


class GpuSeries(NamedTuple):
    """Points of one GPU's metric by time: `times` in unix seconds; mean, low and high of each bucket."""

    gpu: int
    times: np.ndarray  # (n,) float64
    mean: np.ndarray  # (n,) float32
    low: np.ndarray  # (n,)
    high: np.ndarray  # (n,)


class Latest(NamedTuple):
    """The newest that is known of a GPU: values by metric, NaN where the driver has none."""

    time: datetime
    values: Mapping[str, float]


_KEPT: dict[int, dict[str, np.ndarray]] = {}


def copy_history(gpu: int, columns: Mapping[str, np.ndarray], times: np.ndarray, simulated: bool) -> None:  # noqa: ARG001
    """Keep minutes of one GPU: `times` as datetime64 or unix seconds, one column a metric."""
    seconds = times.astype("datetime64[s]").astype(np.float64) if times.dtype.kind == "M" else times.astype(np.float64)
    _KEPT[gpu] = {"time": seconds, **{name: np.asarray(values, np.float32) for name, values in columns.items()}}


def gpu_points(
    metric: str,
    gpus: Sequence[int],
    since: datetime,
    until: datetime,
    *,
    step: timedelta | None = None,
    max_points: int = 600,
) -> list[GpuSeries]:
    """Return each GPU's points in [since, until), in buckets of `step`."""
    length = (step or (until - since) / max_points).total_seconds()
    return [_bucketed(gpu, metric, since.timestamp(), until.timestamp(), max(length, 1.0)) for gpu in gpus]


def _bucketed(gpu: int, metric: str, since: float, until: float, length: float) -> GpuSeries:
    kept = _KEPT.get(gpu)
    if kept is None or metric not in kept or length < 60:
        return GpuSeries(gpu, *(np.zeros(0) for _ in range(4)))
    inside = (kept["time"] >= since) & (kept["time"] < until) & ~np.isnan(kept[metric])
    values = kept[metric][inside]
    buckets = (kept["time"][inside] // length) * length
    starts, first = np.unique(buckets, return_index=True)
    parts = np.split(values, first[1:]) if len(first) else []
    return GpuSeries(
        gpu,
        starts,
        np.array([part.mean() for part in parts], np.float32),
        np.array([part.min() for part in parts], np.float32),
        np.array([part.max() for part in parts], np.float32),
    )


def latest(gpus: Sequence[int]) -> dict[int, Latest]:
    """Return the newest values of the GPUs that have any."""
    found = {}
    for gpu in gpus:
        kept = _KEPT.get(gpu)
        if kept is not None and len(kept["time"]):
            moment = datetime.fromtimestamp(float(kept["time"][-1]), UTC)
            found[gpu] = Latest(moment, {name: float(values[-1]) for name, values in kept.items() if name != "time"})
    return found
