"""How a task is written: it takes ids, reads the clock once, calls one service, and may run twice.

    @task("audit.seal")
    def seal(now: datetime) -> None:
        services.seal_events(now=now)

Tasks live in workers/<app>.py; add the module to TASK_MODULES and, if it ticks, an entry to SCHEDULE, both in
workers/schedule.py. `apps.lib.wake.wake("audit.seal")` runs one sooner.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, Concatenate, ParamSpec

from django.utils import timezone

from apps.lib.errors import DomainError, Temporary
from workers.celery import app

log = logging.getLogger("farrier.task")
P = ParamSpec("P")


def task(name: str, *, queue: str = "default") -> Callable[[Callable[Concatenate[datetime, P], None]], Any]:
    """Register a function as Celery task `name`; it gets the one clock reading of its run as first argument.

    A Temporary error is logged and left to the next tick, which finds the row still due; a DomainError waits for a
    person and is logged as its sentence; everything else is a bug and goes to the log with its trace.
    """

    def register(function: Callable[Concatenate[datetime, P], None]) -> Any:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(timezone.now(), *args, **kwargs)
            except Temporary as later:
                log.warning("%s waits for its next tick: %s", name, later)
            except DomainError as refused:
                log.error("%s can't do its work (%s): %s", name, refused.code, refused.sentence)

        return app.task(name=name, queue=queue)(run)

    return register
