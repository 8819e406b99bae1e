"""What is expected of a series. This branch keeps it in memory; the detector's module takes this one's place."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple


class BandPoint(NamedTuple):
    """One minute of a series as the detector saw it: `low` and `high` are expected ± 4 scales."""

    time: datetime
    expected: float
    low: float
    high: float
    z: float
    kind: str
    observed: float


_KEPT: dict[tuple[int, str], list[BandPoint]] = {}


def keep(gpu: int, metric: str, points: list[BandPoint]) -> None:
    """Keep a band to be shown."""
    _KEPT[gpu, metric] = points


def last_minutes(gpu: int, metric: str, since: datetime) -> list[BandPoint]:
    """Return the band of one GPU's metric from `since` on, by minute."""
    return [point for point in _KEPT.get((gpu, metric), []) if point.time >= since]
