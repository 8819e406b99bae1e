"""The one function that changes control-plane state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from django.db import models, transaction

from apps.access.actors import SYSTEM, Actor
from apps.access.models import Team
from apps.audit.models import Event
from apps.lib.errors import Conflict

__all__ = ["SYSTEM", "Actor", "IllegalMove", "Stale", "Stateful", "move", "record"]


class IllegalMove(Conflict):
    """The object's state does not lead to the wanted one."""

    def __init__(self, obj: models.Model, source: str, to: str) -> None:
        super().__init__("illegal_move", f"{_label(obj)} is {source}; it cannot become {to} from there.")


class Stale(Conflict):
    """Somebody else moved the object first."""

    def __init__(self, obj: models.Model) -> None:
        super().__init__(
            "stale_revision", f"{_label(obj)} has changed since you looked; read it again and decide anew."
        )


class Stateful(Protocol):
    """What `move` needs of a model: `TRANSITIONS` (state → legal next states), `STATE_FIELD`, `revision`, `team_id`."""

    TRANSITIONS: Mapping[str, frozenset[str]]
    STATE_FIELD: str
    pk: Any
    revision: int


def _label(obj: models.Model) -> str:
    return f"{obj._meta.verbose_name} {obj}"


def record(
    obj: models.Model,
    verb: str,
    *,
    actor: Actor,
    reason: str = "",
    now: datetime | None = None,
    from_state: str = "",
    to_state: str = "",
    data: Mapping[str, Any] | None = None,
) -> Event:
    """Insert one event about `obj`; call it in the transaction of the change that it tells of."""
    event = Event(
        team_id=obj.pk if isinstance(obj, Team) else getattr(obj, "team_id", None),
        actor_kind=actor.kind,
        actor=actor.user,
        actor_label=actor.label,
        verb=verb,
        object_type=obj._meta.label_lower,
        object_id=str(obj.pk),
        object_label=str(obj)[:200],
        from_state=from_state,
        to_state=to_state,
        reason=reason,
        data=dict(data or {}),
    )
    if now is not None:
        event.at = now
    event.save(force_insert=True)
    return event


def move(
    obj: Any,
    to: str,
    *,
    actor: Actor,
    reason: str,
    now: datetime,
    changes: Mapping[str, Any] | None = None,
    guard: Mapping[str, Any] | None = None,
    verb: str | None = None,
    data: Mapping[str, Any] | None = None,
) -> Event:
    """Move `obj` to state `to`, with `changes` to further columns, and record it, all or nothing.

    The UPDATE filters on the old state and revision (and on `guard`, such as a lease epoch) and must hit one row.
    Raises IllegalMove when the table of moves does not allow it, Stale when another writer came first.
    On success `obj` carries the new values.
    """
    field: str = obj.STATE_FIELD
    source: str = getattr(obj, field)
    if to not in obj.TRANSITIONS.get(source, frozenset()):
        raise IllegalMove(obj, source, to)
    values = {field: to, "revision": obj.revision + 1, **(changes or {})}
    with transaction.atomic():
        hit = (
            type(obj)
            ._base_manager.filter(pk=obj.pk, **{field: source}, revision=obj.revision, **(guard or {}))
            .update(**values)
        )
        if hit != 1:
            raise Stale(obj)
        event = record(
            obj,
            verb or f"{obj._meta.model_name}.{to}",
            actor=actor,
            reason=reason,
            now=now,
            from_state=source,
            to_state=to,
            data=data,
        )
    for name, value in values.items():
        setattr(obj, name, value)
    return event


def on_acted(*, obj: models.Model, verb: str, actor: Actor, now: datetime, reason: str, **rest: Any) -> None:
    """Record what apps.access hands up (it lies below this app and can't call `record`)."""
    record(obj, verb, actor=actor, now=now, reason=reason, data=rest["data"])
