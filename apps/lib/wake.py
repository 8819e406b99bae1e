"""The doorbell: tells a worker that a row is due. PostgreSQL holds the work, so a lost ring costs latency only."""

from __future__ import annotations

import logging
from typing import Any

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

log = logging.getLogger(__name__)


def wake(task: str, *args: Any, queue: str = "default") -> None:
    """Ask a worker to run `task` (by name) once the current transaction has committed.

    Arguments are ids, never objects. A broker that is away is logged: the next tick finds the row.
    """

    def ring() -> None:
        try:
            current_app.send_task(task, args=[str(arg) for arg in args], queue=queue, retry=False)
        except OperationalError as away:
            log.warning("broker away, %s waits for the next tick: %s", task, away)

    transaction.on_commit(ring)
