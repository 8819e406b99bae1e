"""Every read of the audit log and its webhooks."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.contrib.auth.models import AnonymousUser
from django.db.models import Count, Max, Model, Q, QuerySet

from apps.access.models import Role, User
from apps.access.selectors import for_user
from apps.audit.models import Event, Outbox, Webhook
from apps.lib.errors import NotFound

Anyone = User | AnonymousUser


def events_for(
    user: Anyone,
    *,
    verb: str = "",
    object_type: str = "",
    object_id: str = "",
    actor: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> QuerySet[Event]:
    """Return the events of the user's teams, newest first, narrowed by what is given.

    `verb` may end in a dot («rollout.») to mean all that begin so; `actor` is a username. Events of no team (users,
    keys) are for superusers.
    """
    everything = isinstance(user, User) and user.is_active and user.is_superuser and user.confined_to is None
    events = Event.objects.all() if everything else for_user(Event.objects.all(), user)
    if verb:
        events = events.filter(verb__startswith=verb) if verb.endswith(".") else events.filter(verb=verb)
    exact = {"object_type": object_type, "object_id": object_id, "actor__username": actor}
    events = events.filter(**{name: value for name, value in exact.items() if value})
    if since is not None:
        events = events.filter(at__gte=since)
    if until is not None:
        events = events.filter(at__lt=until)
    return events.select_related("actor", "seal").order_by("-id")


def events_about(obj: Model) -> QuerySet[Event]:
    """Return what happened to one object, newest first. The caller has checked that it may be seen."""
    return (
        Event.objects.filter(object_type=obj._meta.label_lower, object_id=str(obj.pk))
        .select_related("actor", "seal")
        .order_by("-id")
    )


def webhooks_for(user: Anyone) -> QuerySet[Webhook]:
    """Return the webhooks of the teams that the user is an admin of: an address may be all that a receiver asks for."""
    rows = for_user(Webhook.objects.all(), user)
    if not isinstance(user, User) or not user.is_superuser:
        rows = rows.filter(team__memberships__user=user.pk, team__memberships__role=Role.ADMIN)
    return rows.select_related("team").order_by("id")


def get_webhook(user: Anyone, webhook_id: str) -> Webhook:
    """Return one webhook. Raises NotFound."""
    webhook = webhooks_for(user).filter(pk=webhook_id).first()
    if webhook is None:
        raise NotFound("webhook_not_found", "Your teams have no such webhook; see /api/v1/webhooks.")
    return webhook


def deliveries_of(webhook: Webhook) -> QuerySet[Outbox]:
    """Return what a webhook was told, or is to be told, newest first."""
    return Outbox.objects.filter(webhook=webhook).order_by("-created_at")


# What may be asked for of a delivery log; `Outbox.status` says which one a row is in.
DELIVERY_STATES = (("due", "To be sent"), ("trying", "Tried without success"), ("delivered", "Delivered"),
                   ("parked", "Given up"))  # fmt: skip


def in_state(rows: QuerySet[Outbox], state: str) -> QuerySet[Outbox]:
    """Narrow deliveries to a state of DELIVERY_STATES; anything else keeps all."""
    waits: dict[str, object] = {"done_at__isnull": True, "parked_at__isnull": True}
    narrowed: dict[str, dict[str, object]] = {
        "due": {**waits, "attempts": 0},
        "trying": {**waits, "attempts__gt": 0},
        "delivered": {"done_at__isnull": False},
        "parked": {"parked_at__isnull": False},
    }
    return rows.filter(**narrowed.get(state, {}))


def get_delivery(webhook: Webhook, delivery_id: UUID) -> Outbox:
    """Return one message to a webhook. Raises NotFound."""
    row = deliveries_of(webhook).filter(pk=delivery_id).first()
    if row is None:
        raise NotFound("delivery_not_found", "This webhook has no such delivery; the log keeps a month.")
    return row


def with_counts(rows: QuerySet[Webhook]) -> QuerySet[Webhook]:
    """Add to webhooks how many messages were `delivered`, are `waiting`, were `parked`, and the `last_delivery`."""
    waits = Q(deliveries__done_at__isnull=True, deliveries__parked_at__isnull=True, deliveries__isnull=False)
    return rows.annotate(
        delivered=Count("deliveries", filter=Q(deliveries__done_at__isnull=False)),
        waiting=Count("deliveries", filter=waits),
        parked=Count("deliveries", filter=Q(deliveries__parked_at__isnull=False)),
        last_delivery=Max("deliveries__done_at"),
    )
