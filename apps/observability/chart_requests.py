"""Requests as lines of a chart: one a version of each model named, from the inference log."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import numpy as np

from apps.access.models import User
from apps.access.selectors import teams_for
from apps.lib.errors import DomainError
from apps.models.models import RegisteredModel, VersionState
from apps.models.selectors import get_model
from apps.observability import timeseries
from apps.observability.chart_query import SERIES_MAX, ChartQuery
from apps.observability.timeseries import TrafficBucket

LONGEST = timedelta(days=8)  # the log is read row by row; beyond it there is but the past of which days were dropped

# (key, label, simulated, times, mean, low, high): a line's points
Told = tuple[str, str, bool, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def request_lines(user: User, query: ChartQuery, step: timedelta) -> list[Told]:
    """Return the lines of the models that the query names. Raises NotFound and DomainError."""
    if query.window.until - query.window.since > LONGEST:
        raise DomainError("bad_range", "Requests are kept one by one for some days only; ask for at most 7d of them.")
    lines = []
    for slug in query.models:
        lines += _of_model(user, get_model(user, slug), query, step)
    if len(lines) > SERIES_MAX:
        raise DomainError("too_many_series", f"A chart draws at most {SERIES_MAX} versions; name fewer models.")
    return lines


def _of_model(user: User, model: RegisteredModel, query: ChartQuery, step: timedelta) -> list[Told]:
    numbers = list(model.versions.filter(state=VersionState.PUBLISHED).values_list("number", flat=True))
    teams = teams_for(user).values_list("pk", flat=True)
    window = query.window
    since = max(window.since, query.after) if query.after else window.since
    since = _floor(since, step)
    rows = timeseries.traffic(model.slug, numbers, teams, since, window.until, step)
    value = _value(query.metric.name, step)
    counted = query.metric.name == "requests"
    lines = []
    for version in sorted({row.version for row in rows}):
        mine = [row for row in rows if row.version == version]
        times = np.array([row.start.timestamp() for row in mine])
        values = np.array([value(row) for row in mine], np.float64)
        if counted:
            times, values = _with_zeros(times, values, step)
        label = f"{model.slug} v{version}"
        lines.append((f"{model.slug}@{version}", label, False, times, values, values, values))
    return lines


def _value(name: str, step: timedelta) -> Callable[[TrafficBucket], float]:
    minutes = step / timedelta(minutes=1)
    values: dict[str, Callable[[TrafficBucket], float]] = {
        "requests": lambda row: row.requests / minutes,
        "latency_p50_ms": lambda row: row.p50_us / 1_000,
        "latency_p99_ms": lambda row: row.p99_us / 1_000,
        "errors_ratio": lambda row: row.errors / row.requests,
    }
    return values[name]


def _with_zeros(times: np.ndarray, values: np.ndarray, step: timedelta) -> tuple[np.ndarray, np.ndarray]:
    """Between a version's first and last request a bucket without any is a measured nought, not a gap."""
    length = step.total_seconds()
    every = np.arange(times[0], times[-1] + length / 2, length)
    filled = np.zeros(len(every))
    filled[np.rint((times - times[0]) / length).astype(int)] = values
    return every, filled


def _floor(moment: datetime, step: timedelta) -> datetime:
    seconds = moment.timestamp() % step.total_seconds()
    return moment - timedelta(seconds=seconds)
