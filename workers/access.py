"""Upkeep of the access tables."""

from __future__ import annotations

from datetime import datetime

from apps.access import services
from workers.task import task


@task("access.tidy", queue="jobs")
def tidy(now: datetime) -> None:
    """Forget answers that nobody will ask for again."""
    services.forget_idempotency_keys(now=now)
