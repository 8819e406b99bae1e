"""What ticks, and how often. Every tick only looks for rows that are due, so a lost or doubled one does no harm."""

from __future__ import annotations

from typing import Any

from django.conf import settings

TICK_S: float = settings.FARRIER.tick_s
MINUTE_S = 60.0

# Modules with tasks; each registers its own by import.
TASK_MODULES = [
    "workers.access",
    "workers.audit",
    "workers.fleet",
    "workers.observability",
    "workers.registry",
    "workers.rollouts",
]


def every(task: str, seconds: float, *, queue: str = "") -> dict[str, Any]:
    """Return a beat entry. One that nobody took before the next is due expires: ticks never pile up.

    Each app's ticks have a queue of their own, and workers take from queues in turn. In one queue all ticks of a second
    expire together while a busy worker does the first of them, so that the last would never run.
    """
    queue = queue or task.partition(".")[0]
    return {"task": task, "schedule": seconds, "options": {"queue": queue, "expires": max(seconds, 1.0)}}


SCHEDULE: dict[str, dict[str, Any]] = {
    entry["task"]: entry
    for entry in (
        every("audit.seal", TICK_S),
        every("audit.checkpoint", MINUTE_S),
        every("audit.deliver", TICK_S),
        every("audit.tidy", 60 * MINUTE_S, queue="jobs"),
        every("access.tidy", 10 * MINUTE_S, queue="jobs"),
        every("fleet.compile_assignments", TICK_S),
        every("fleet.forget_nonces", MINUTE_S),
        every("rollouts.tick", TICK_S),
        every("observability.refresh", TICK_S),
        every("observability.detect", 10.0),
        every("observability.evaluate", TICK_S),
        every("observability.keep_series", 10 * MINUTE_S, queue="jobs"),
    )
}
