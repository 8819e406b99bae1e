"""Effects that leave the process: written with their cause, delivered until they are done or given up."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q
from standardwebhooks import Webhook as Signer

from apps.access.models import Team
from apps.audit import egress
from apps.audit.models import Outbox, Webhook
from apps.lib.errors import DomainError, Temporary
from apps.lib.wake import wake

log = logging.getLogger("farrier.outbox")

LEASE = timedelta(seconds=60)
BUDGET_S = 50.0
MAX_ATTEMPTS = 12  # over about five hours
FIRST_DELAY_S = 5.0
LONGEST_DELAY_S = 3_600.0
KEPT = timedelta(days=30)


def emit(topic: str, payload: Mapping[str, Any], team: Team | uuid.UUID, *, now: datetime) -> int:
    """Tell a team's webhooks that something happened; call it in the transaction of what happened.

    Returns how many will be told. `payload` must be JSON.
    """
    team_id = team.pk if isinstance(team, Team) else team
    hooks = Webhook.objects.filter(team_id=team_id, enabled=True)
    rows = [
        Outbox(
            kind="webhook",
            topic=topic,
            payload=dict(payload),
            team_id=team_id,
            webhook=hook,
            created_at=now,
            due_at=now,
        )
        for hook in hooks
        if not hook.topics or topic in hook.topics
    ]
    if rows:
        Outbox.objects.bulk_create(rows)
        wake("audit.deliver")
    return len(rows)


def deliver_due(*, now: datetime) -> int:
    """Send what is due, for most of a minute at the longest; return how many were delivered.

    Safe to run twice at once: every row is leased before it is sent.
    """
    begun, delivered = time.monotonic(), 0
    while (elapsed_s := time.monotonic() - begun) < BUDGET_S:
        moment = now + timedelta(seconds=elapsed_s)
        row = _claim(moment)
        if row is None:
            break
        outcome = _send(row)
        delivered += _finish(row, outcome, moment) and outcome.done
    return delivered


def _claim(now: datetime) -> Outbox | None:
    """Lease the longest due row in one short transaction; whoever holds an older epoch can't finish it any more."""
    free = Q(lease_until__isnull=True) | Q(lease_until__lt=now)
    with transaction.atomic():
        row = (
            Outbox.objects.select_for_update(skip_locked=True, of=("self",))
            .select_related("webhook")
            .filter(free, due_at__lte=now, done_at__isnull=True, parked_at__isnull=True)
            .order_by("due_at")
            .first()
        )
        if row is None:
            return None
        row.lease_until, row.lease_epoch, row.attempts = now + LEASE, row.lease_epoch + 1, row.attempts + 1
        row.save(update_fields=["lease_until", "lease_epoch", "attempts"])
    return row


@dataclass(frozen=True)
class Outcome:
    done: bool
    hopeless: bool = False
    error: str = ""


def _send(row: Outbox) -> Outcome:
    """Deliver one row. The receiver tells repeats by `webhook-id`, which stays the same over attempts."""
    hook = row.webhook
    if hook is None or not hook.enabled:
        return Outcome(done=False, hopeless=True, error="The webhook was switched off.")
    moment = datetime.now(UTC)  # of the attempt: receivers refuse signatures older than five minutes
    body = json.dumps({"type": row.topic, "timestamp": row.created_at.isoformat(), "data": row.payload})
    headers = {
        "Content-Type": "application/json",
        "webhook-id": str(row.pk),
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": Signer(hook.secret).sign(str(row.pk), moment, body),
    }
    try:
        status = egress.post(hook.url, body.encode(), headers)
    except Temporary as away:
        return Outcome(done=False, error=str(away))
    except DomainError as never:
        return Outcome(done=False, hopeless=True, error=never.sentence)
    if 200 <= status < 300:
        return Outcome(done=True)
    # 410 is the receiver's word that it wants no more of these
    # the rest of an address may be a secret, and this sentence goes to the log
    return Outcome(done=False, hopeless=status == 410, error=f"{hook.host} answered {status}.")


def _finish(row: Outbox, outcome: Outcome, now: datetime) -> bool:
    """Write what became of an attempt, unless somebody else has leased the row meanwhile."""
    changes: dict[str, Any] = {"lease_until": None, "last_error": outcome.error[:1_000]}
    if outcome.done:
        changes["done_at"] = now
    elif outcome.hopeless or row.attempts >= MAX_ATTEMPTS:
        changes["parked_at"] = now
        log.error("gave up telling of %s: %s", row.topic, outcome.error)
    else:
        changes["due_at"] = now + timedelta(seconds=delay_s(row.attempts))
    hit = Outbox.objects.filter(pk=row.pk, lease_epoch=row.lease_epoch, done_at__isnull=True).update(**changes)
    if hit != 1:
        log.warning("outbox row %s was taken over by another worker", row.pk)
    return hit == 1


def delay_s(attempts: int) -> float:
    """Seconds until the next attempt: 5, 10, 20, … up to an hour."""
    return float(min(FIRST_DELAY_S * 2 ** (attempts - 1), LONGEST_DELAY_S))


def forget_delivered(*, now: datetime) -> int:
    """Delete deliveries done a month ago; return how many. Parked ones stay until a person looks."""
    gone, _ = Outbox.objects.filter(done_at__lt=now - KEPT).delete()
    return gone
