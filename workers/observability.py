"""The time series: rollups, days to come, days gone by."""

from __future__ import annotations

from datetime import datetime

from apps.observability import services
from workers.task import task


@task("observability.keep_series", queue="jobs")
def keep_series(now: datetime) -> None:
    """Create partitions ahead and apply the retention."""
    services.keep_series(now=now)


@task("observability.refresh", queue="observability")
def refresh(now: datetime) -> None:
    """Roll up minutes, hours and days."""
    services.refresh_rollups(now=now)
