"""The tick: claim due rollouts, look at each, decide, act. Losing a worker costs its lease's time, never work.

claim (one short UPDATE) → load and judge (no lock held) → plan (pure) → apply (one fenced transaction) → release
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import connection

from apps.audit.transitions import Stale
from apps.lib.wake import wake
from apps.rollouts import evidence
from apps.rollouts.effects import Judged, apply, lease
from apps.rollouts.models import Phase, Rollout
from apps.rollouts.planner import judged_stage, plan
from apps.rollouts.plans import DEFAULT_LIMITS, Await, Limits, Snapshot
from apps.rollouts.snapshot import Loaded, load, view
from protocol import failpoints

log = logging.getLogger(__name__)

BATCH = 20
STEPS = 6  # one tick may take several: a stage ends, the next begins, its weights go out
RETRY = timedelta(seconds=5)
TASK = "rollouts.reconcile"

_CLAIM = """
UPDATE rollouts_rollout SET lease_until = %(lease)s, lease_epoch = lease_epoch + 1
WHERE id IN (
    SELECT id FROM rollouts_rollout
    WHERE phase NOT IN ('completed', 'rolled_back', 'aborted', 'superseded')
      AND (due_at <= %(now)s OR id = %(only)s) AND (%(only)s IS NULL OR id = %(only)s)
      AND (lease_until IS NULL OR lease_until <= %(now)s)
    ORDER BY due_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
RETURNING id, lease_epoch, due_at
"""


def tick(now: datetime) -> int:
    """Bring every due rollout a step further; return how many were looked at. A fault in one is logged."""
    claimed = _claim(now, None, BATCH)
    for claim in claimed:
        try:
            _reconcile(*claim, now)
        except Exception:
            log.exception("rollout %s could not be reconciled; it is tried again in %s", claim[0], RETRY)
    return len(claimed)


def reconcile(rollout_id: UUID, now: datetime) -> bool:
    """Bring one rollout a step further, due or not; False when it has ended or another worker has it at hand."""
    claimed = _claim(now, rollout_id, 1)
    for claim in claimed:
        _reconcile(*claim, now)
    return bool(claimed)


def _claim(now: datetime, only: UUID | None, limit: int) -> list[tuple[UUID, int, datetime]]:
    with connection.cursor() as cursor:
        cursor.execute(_CLAIM, {"now": now, "lease": now + lease(), "only": only, "limit": limit})
        return list(cursor.fetchall())


def _reconcile(rollout_id: UUID, epoch: int, due_at: datetime, now: datetime) -> None:
    """Work on a claimed rollout and give it back, come what may."""
    failpoints.pass_by("rollout.claimed")
    next_look = now + RETRY
    try:
        next_look = _steps(rollout_id, epoch, now)
    except Stale:
        log.info("rollout %s was moved while it was looked at; looking again", rollout_id)
        next_look = now
    finally:
        _release(rollout_id, epoch, due_at, next_look)


def _steps(rollout_id: UUID, epoch: int, now: datetime) -> datetime:
    """Take steps until nothing changes any more; return when to look again."""
    next_look = now + RETRY
    for _ in range(STEPS):
        loaded = load(rollout_id, epoch)
        if loaded is None or loaded.rollout.phase in Rollout.TERMINAL:
            break
        snapshot = view(loaded, now)
        judged = _judge(loaded, snapshot, now)
        if judged is not None:
            snapshot = replace(snapshot, findings=tuple(judged.findings))
        actions = plan(snapshot, now, limits())
        next_look = next((action.until for action in actions if isinstance(action, Await)), next_look)
        failpoints.pass_by("rollout.decided")
        if not apply(loaded, actions, judged, now):
            break
        failpoints.pass_by("rollout.committed")
    return next_look


def limits() -> Limits:
    """Return the deadlines of phases, with the life of an approval as this installation sets it."""
    return replace(DEFAULT_LIMITS, decision_s=settings.FARRIER.approval_life_s)


def _judge(loaded: Loaded, snapshot: Snapshot, now: datetime) -> Judged | None:
    """Look at the evidence of the stage that counts now, once its nodes are ready, while the rollout still can turn."""
    judged = judged_stage(snapshot)
    if judged is None or judged.ready_at is None or snapshot.phase not in (Phase.PROGRESSING, Phase.PAUSED):
        return None
    stage = loaded.stages[judged.index]
    return Judged(stage, evidence.judge(loaded, stage, now))


def _release(rollout_id: UUID, epoch: int, claimed_due_at: datetime, next_look: datetime) -> None:
    """Give the lease back. Where a command has set a new `due_at` meanwhile, that one stands, and its ring, which found
    the rollout taken, is repeated.
    """
    mine = Rollout.objects.filter(pk=rollout_id, lease_epoch=epoch)
    undisturbed = mine.filter(due_at=claimed_due_at).update(lease_until=None, due_at=next_look)
    if not undisturbed and mine.update(lease_until=None):
        wake(TASK, rollout_id)
