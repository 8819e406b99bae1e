"""The time series: rollups, days to come, days gone by; what is unusual in them, and the alerts of it."""

from __future__ import annotations

from datetime import datetime

from apps.observability import alerting, detection, services
from workers.task import task


@task("observability.keep_series", queue="jobs")
def keep_series(now: datetime) -> None:
    """Create partitions ahead and apply the retention."""
    services.keep_series(now=now)
    alerting.forget(now=now)


@task("observability.refresh", queue="observability")
def refresh(now: datetime) -> None:
    """Roll up minutes, hours and days."""
    services.refresh_rollups(now=now)


@task("observability.detect", queue="observability")
def detect(now: datetime) -> None:
    """Judge the minutes that have closed."""
    detection.detect(now)


@task("observability.evaluate", queue="observability")
def evaluate(now: datetime) -> None:
    """Bring every alert up to date and tell whom it concerns."""
    alerting.evaluate(now)
