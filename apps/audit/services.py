"""Every write of this app: events and moves (transitions), seals, checkpoints, webhooks and what they are told."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from apps.access.models import Role, Team
from apps.access.services import require_actor
from apps.audit import egress
from apps.audit.models import Outbox, Webhook
from apps.audit.outbox import deliver_due, emit, forget_delivered
from apps.audit.sealer import mark_restored, seal_events, sign_checkpoint, watch_lag
from apps.audit.transitions import Actor, move, record
from apps.lib.errors import Conflict

__all__ = [
    "create_webhook",
    "delete_webhook",
    "deliver_due",
    "emit",
    "forget_delivered",
    "mark_restored",
    "move",
    "record",
    "resend",
    "seal_events",
    "sign_checkpoint",
    "watch_lag",
]


def create_webhook(*, team: Team, url: str, topics: Sequence[str], actor: Actor, now: datetime) -> tuple[Webhook, str]:
    """Have a team told by HTTP; return the row and the secret by which the receiver checks signatures.

    Raises Forbidden (admins), DomainError for an address that must not be dialled.
    """
    require_actor(actor, team, Role.ADMIN)
    egress.check_url(url)
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    with transaction.atomic():
        hook = Webhook.objects.create(team=team, url=url, secret=secret, topics=sorted(set(topics)))
        record(hook, "webhook.created", actor=actor, now=now, data={"host": hook.host, "topics": hook.topics})
    return hook, secret


def delete_webhook(*, webhook: Webhook, actor: Actor, now: datetime) -> None:
    """Stop telling; what is still to be delivered to it goes with it."""
    require_actor(actor, webhook.team_id, Role.ADMIN)
    with transaction.atomic():
        record(webhook, "webhook.deleted", actor=actor, now=now, data={"host": webhook.host})
        webhook.delete()


def resend(*, row: Outbox, actor: Actor, now: datetime) -> None:
    """Try a parked delivery again. Raises Conflict when it isn't parked."""
    if row.team_id is not None:
        require_actor(actor, row.team_id, Role.ADMIN)
    hit = Outbox.objects.filter(pk=row.pk, parked_at__isnull=False).update(parked_at=None, attempts=0, due_at=now)
    if hit != 1:
        raise Conflict("not_parked", "This delivery is not parked; it was delivered or is still being tried.")
