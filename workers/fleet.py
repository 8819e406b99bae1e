"""Ticks of the fleet: sign assignments that are due, forget spent nonces."""

from __future__ import annotations

import time
from datetime import datetime

from django.conf import settings

from apps.fleet import assignments, services
from workers.task import task

BUSY_RETRIES = 20
BUSY_WAIT_S = 0.05


@task(services.COMPILE_TASK)
def compile_assignments(now: datetime) -> None:
    """Sign what is due. Nodes whose row a poll holds just now are tried again within a second."""
    if settings.FARRIER.director_key is None:
        return  # this worker may not sign; one that has the key does
    for _ in range(BUSY_RETRIES):
        if assignments.compile_assignments(now).busy == 0:
            return
        time.sleep(BUSY_WAIT_S)


@task("fleet.forget_nonces")
def forget_nonces(now: datetime) -> None:
    """Delete nonces that are too old to be accepted again anyway."""
    services.forget_nonces(now=now)
