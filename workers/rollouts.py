"""Tasks of rollouts: the tick that finds due ones, and the doorbell that makes one sooner."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from apps.rollouts import reconcile
from workers.task import task


@task("rollouts.tick")
def tick(now: datetime) -> None:
    """Bring every due rollout a step further."""
    reconcile.tick(now)


@task("rollouts.reconcile")
def reconcile_one(now: datetime, rollout_id: str) -> None:
    """Bring one rollout a step further at once; if another worker has it at hand, that one or the tick does it."""
    reconcile.reconcile(UUID(rollout_id), now)
