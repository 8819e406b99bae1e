"""Upkeep of the registry."""

from __future__ import annotations

import logging
from datetime import datetime

from apps.models import services, store
from workers.task import task

log = logging.getLogger("farrier.registry")


@task("registry.tidy", queue="jobs")
def tidy(now: datetime) -> None:
    """Give up numbers that were never published; delete uploads that broke off."""
    given_up, swept = services.abandon_stale(now=now), store.sweep(now=now)
    if given_up or swept:
        log.info("gave up %d reserved versions, deleted %d broken uploads", given_up, swept)
