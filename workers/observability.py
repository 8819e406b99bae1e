"""Alerts, and the upkeep of the time series: days to come, days gone by."""

from __future__ import annotations

from datetime import datetime

from apps.observability import alerting, services
from workers.task import task


@task("observability.keep_series", queue="jobs")
def keep_series(now: datetime) -> None:
    """Create partitions ahead and apply the retention."""
    services.keep_series(now=now)
    alerting.forget(now=now)


@task("observability.evaluate", queue="observability")
def evaluate(now: datetime) -> None:
    """Bring every alert up to date and tell whom it concerns."""
    alerting.evaluate(now)
