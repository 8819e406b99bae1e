"""What happened while a series ran: events of its nodes and of the rollouts that touch them, as marks on the chart."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Q, QuerySet

from apps.access.models import User
from apps.access.selectors import for_user
from apps.audit import selectors as audit
from apps.audit.models import Event
from apps.fleet.models import DesiredDeployment, Node
from apps.lib.templatetags.farrier import verb
from apps.observability.chart_query import ChartQuery

NODES_MARKED = 4  # the marks of more nodes would hide the lines
MARKERS_MAX = 40
LABEL_CHARS = 60
ALERT = "observability.alert"
ALERT_LONGEST = timedelta(days=7)  # how long before the window an alert that is shown may have begun
ALERT_EVENTS_MAX = 200
ROLLOUT_VERBS = ("rollout.started", "rollout.promoting", "rollout.completed", "rollout.rolling_back",
                 "rollout.rolled_back", "rollout.aborted")  # fmt: skip


class Marker(NamedTuple):
    """Something that happened at `time` (unix seconds), or lasted until `until`; `kind`: alert, rollout or event."""

    time: int
    until: int | None
    label: str
    kind: str


def markers(user: User, nodes: Sequence[Node], query: ChartQuery) -> tuple[Marker, ...]:
    """Return what happened within the chart's window to its nodes, or to the rollouts of its models, by time."""
    window = query.window
    about = Q(pk__in=[])
    if nodes and len(nodes) <= NODES_MARKED:
        about |= Q(object_type="fleet.node", object_id__in=[str(node.pk) for node in nodes])
        about |= _rollouts(DesiredDeployment.objects.filter(node__in=nodes))
    if query.models:
        touching = for_user(DesiredDeployment.objects.filter(model__slug__in=query.models), user)
        about |= _rollouts(touching)
    events = audit.events_for(user, since=query.after or window.since, until=window.until).filter(about)
    found = [_marker(event) for event in events[:MARKERS_MAX]]
    return tuple(sorted([*found, *_alerts(user, nodes, query)], key=lambda marker: marker.time))


def _alerts(user: User, nodes: Sequence[Node], query: ChartQuery) -> list[Marker]:
    """Return how long alerts of these nodes fired, as the audit log has it; one that still fires lasts to the end."""
    if not nodes or len(nodes) > NODES_MARKED:
        return []
    window = query.window
    labels = Q(pk__in=[])
    for node in nodes:
        labels |= Q(object_label__endswith=f" on {node.name}")
    moves = audit.events_for(user, object_type=ALERT, since=window.since - ALERT_LONGEST, until=window.until)
    begun: dict[str, Event] = {}
    ended: dict[str, int] = {}
    for event in moves.filter(labels, verb__in=("alert.firing", "alert.resolved"))[:ALERT_EVENTS_MAX]:
        if event.verb == "alert.firing":
            begun[event.object_id] = event  # newest first: the last one seen is when it began
        else:
            ended.setdefault(event.object_id, _second(event.at))
    end = int(-(-window.until.timestamp() // 60) * 60)  # whole minutes, so that a poll may find nothing new
    ranges = [(_second(event.at), ended.get(key, end), _short(event.object_label)) for key, event in begun.items()]
    return [Marker(since, until, label, "alert") for since, until, label in ranges if until >= window.since.timestamp()]


def _rollouts(touching: QuerySet[DesiredDeployment]) -> Q:
    """Events of the rollouts whose work stands on nodes now; of an older one nothing is left to ask by."""
    ids = touching.filter(rollout_id__isnull=False).order_by().values_list("rollout_id", flat=True).distinct()
    return Q(object_type="rollouts.rollout", object_id__in=[str(pk) for pk in ids], verb__in=ROLLOUT_VERBS)


def _marker(event: Event) -> Marker:
    said = verb(event.verb, event.data)
    if event.object_type == "rollouts.rollout":
        return Marker(_second(event.at), None, _short(f"{said}, {event.object_label}"), "rollout")
    happened = said.removeprefix("Node ").lower()  # «node-2 cordoned», not «node-2 node cordoned»
    reason = f": {event.reason}" if event.reason else ""
    return Marker(_second(event.at), None, _short(f"{event.object_label} {happened}{reason}"), "event")


def _second(moment: datetime) -> int:
    return int(moment.timestamp())


def _short(text: str) -> str:
    return text if len(text) <= LABEL_CHARS else f"{text[: LABEL_CHARS - 1]}…"
