"""What the console's pages read of the time series: a model's traffic, laid out for charts and their tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from apps.access.models import User
from apps.access.selectors import teams_for
from apps.models.models import RegisteredModel, VersionState
from apps.observability import timeseries
from apps.observability.timeseries import TrafficBucket

# What `?range=` may say: how far back, in buckets of what length
RANGES = {
    "15m": ("15 min", timedelta(minutes=15), timedelta(minutes=1)),
    "1h": ("1 h", timedelta(hours=1), timedelta(minutes=1)),
    "6h": ("6 h", timedelta(hours=6), timedelta(minutes=5)),
    "24h": ("24 h", timedelta(hours=24), timedelta(minutes=15)),
}
DEFAULT_RANGE = "1h"


@dataclass(frozen=True)
class Line:
    """A moment with one value a version; None where a version answered nothing."""

    at: datetime
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Chart:
    """One chart: its name, its unit, the series' names, and its points by time."""

    slug: str
    name: str
    unit: str
    series: tuple[str, ...]
    lines: tuple[Line, ...]


def traffic_charts(user: User, model: RegisteredModel, wanted: str, now: datetime) -> list[Chart]:
    """Return requests a minute, p99 and errors per version over a range; none when nothing was answered in it."""
    _, length, bucket = RANGES[wanted]
    numbers = model.versions.filter(state=VersionState.PUBLISHED).values_list("number", flat=True)
    teams = teams_for(user).values_list("pk", flat=True)
    rows = timeseries.traffic(model.slug, numbers, teams, now - length, now, bucket)
    if not rows:
        return []
    minutes = bucket / timedelta(minutes=1)
    return [
        _chart(
            rows, "requests", "Requests", "/min", lambda row: row.requests / minutes, now - length, now, bucket, 0.0
        ),
        _chart(rows, "p99", "p99 latency", "ms", lambda row: row.p99_us / 1_000, now - length, now, bucket, None),
        _chart(
            rows, "errors", "Errors", "%", lambda row: 100 * row.errors / row.requests, now - length, now, bucket, None
        ),
    ]


def _chart(
    rows: Sequence[TrafficBucket],
    slug: str,
    name: str,
    unit: str,
    value: Callable[[TrafficBucket], float],
    since: datetime,
    until: datetime,
    bucket: timedelta,
    absent: float | None,
) -> Chart:
    """Lay rows out as one line a bucket; a bucket without a version's requests has `absent` for it."""
    versions = sorted({row.version for row in rows})
    known = {(row.start, row.version): value(row) for row in rows}
    first = min(row.start for row in rows)
    first -= ((first - since) // bucket) * bucket
    lines = []
    at = first
    while at < until:
        lines.append(Line(at, tuple(known.get((at, version), absent) for version in versions)))
        at += bucket
    return Chart(slug, name, unit, tuple(f"v{version}" for version in versions), tuple(lines))
