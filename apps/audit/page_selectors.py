"""What the console's pages read from the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from django.db.models import Model, Q, QuerySet
from django.urls import NoReverseMatch, reverse

from apps.access.models import User
from apps.audit import selectors
from apps.audit.models import Checkpoint, Event, Seal
from apps.audit.sealer import LAG_LIMIT_S, seal_lag_s

SHOWN = 100


def filtered(
    user: User, *, text: str = "", kind: str = "", object_type: str = "", since: date | None = None
) -> QuerySet[Event]:
    """Return events with their seals, narrowed to a text (object, actor, verb, reason), a kind of actor or object."""
    start = datetime.combine(since, time.min, UTC) if since else None
    rows = selectors.events_for(user, object_type=object_type, since=start)
    if text:
        rows = rows.filter(
            Q(object_label__icontains=text)
            | Q(actor_label__icontains=text)
            | Q(verb__icontains=text)
            | Q(reason__icontains=text)
        )
    return rows.filter(actor_kind=kind) if kind else rows


def object_types(user: User) -> list[str]:
    """Return the kinds of object that the user's events speak of."""
    return list(selectors.events_for(user).order_by("object_type").values_list("object_type", flat=True).distinct())


def about(*objects: Model) -> QuerySet[Event]:
    """Return the newest events about the given objects, newest first."""
    wanted = Q(pk__in=[])
    for obj in objects:
        wanted |= Q(object_type=obj._meta.label_lower, object_id=str(obj.pk))
    return Event.objects.filter(wanted).order_by("-id")[:SHOWN]


@dataclass(frozen=True)
class SealState:
    """How far the hash chain reaches."""

    sealed: int
    behind_s: float  # age of the oldest event that is not sealed yet
    checkpoint_at: datetime | None

    @property
    def late(self) -> bool:
        return self.behind_s > LAG_LIMIT_S


def seal_state(now: datetime) -> SealState:
    """Return how many events are sealed, how far the sealer is behind, and when the chain's end was last signed."""
    last = Seal.objects.order_by("-position").values_list("position", flat=True).first()
    checkpoint = Checkpoint.objects.order_by("-position").values_list("at", flat=True).first()
    return SealState(last or 0, seal_lag_s(now=now), checkpoint)


def address(event: Event) -> str | None:
    """Return the page of the object that an event speaks of, None where it has none."""
    names = {
        "rollouts.rollout": ("rollout", event.object_id),
        "fleet.node": ("node", event.object_label),
        "observability.alert": ("alert", event.object_id),
        "registry.registeredmodel": ("model", event.object_label),
    }
    try:
        name, argument = names[event.object_type]
        return reverse(name, args=(argument,))
    except (KeyError, NoReverseMatch):
        return None
