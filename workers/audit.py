"""Ticks of the audit log: seal, sign, tell."""

from __future__ import annotations

from datetime import datetime

from apps.audit import services
from workers.task import task


@task("audit.seal")
def seal(now: datetime) -> None:
    """Chain what can be chained, and say so aloud when that falls behind."""
    services.seal_events()
    services.watch_lag(now=now)


@task("audit.checkpoint")
def checkpoint(now: datetime) -> None:
    """Sign where the chain ends."""
    services.sign_checkpoint(now=now)


@task("audit.deliver")
def deliver(now: datetime) -> None:
    """Send what webhooks are due."""
    services.deliver_due(now=now)


@task("audit.tidy", queue="jobs")
def tidy(now: datetime) -> None:
    """Forget what was delivered long ago."""
    services.forget_delivered(now=now)
