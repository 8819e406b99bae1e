"""What the console's pages read from the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

from django.db.models import Model, Q, QuerySet
from django.urls import NoReverseMatch, reverse

from apps.access.models import User
from apps.access.selectors import for_user
from apps.audit.models import Checkpoint, Event, Seal

SHOWN = 100


def events(user: User) -> QuerySet[Event]:
    """Return the events of the user's teams, newest first; those of no team are for superusers."""
    rows = Event.objects.all() if user.is_superuser else for_user(Event.objects.all(), user)
    return rows.order_by("-id")


def filtered(
    user: User, *, text: str = "", kind: str = "", object_type: str = "", since: date | None = None
) -> QuerySet[Event]:
    """Return events with their seals, narrowed to a text (object, actor, verb, reason), a kind of actor or object."""
    rows = events(user).select_related("seal")
    if text:
        rows = rows.filter(
            Q(object_label__icontains=text)
            | Q(actor_label__icontains=text)
            | Q(verb__icontains=text)
            | Q(reason__icontains=text)
        )
    if kind:
        rows = rows.filter(actor_kind=kind)
    if object_type:
        rows = rows.filter(object_type=object_type)
    if since:
        rows = rows.filter(at__date__gte=since)
    return rows


def object_types(user: User) -> list[str]:
    """Return the kinds of object that the user's events speak of."""
    return list(events(user).order_by("object_type").values_list("object_type", flat=True).distinct())


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
    unsealed: int
    checkpoint_at: datetime | None


def seal_state() -> SealState:
    """Return how many events are sealed and when the chain's end was last signed."""
    last = Seal.objects.order_by("-position").first()
    checkpoint = Checkpoint.objects.order_by("-position").values_list("at", flat=True).first()
    return SealState(last.position if last else 0, Event.objects.filter(seal__isnull=True).count(), checkpoint)


def address(event: Event) -> str | None:
    """Return the page of the object that an event speaks of, None where it has none."""
    names = {
        "rollouts.rollout": ("rollout", event.object_id),
        "fleet.node": ("node", event.object_label),
        "registry.registeredmodel": ("model", event.object_label),
    }
    try:
        name, argument = names[event.object_type]
        return reverse(name, args=(argument,))
    except (KeyError, NoReverseMatch):
        return None
