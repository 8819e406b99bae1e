"""Who is told what, and when: Alertmanager's rules, as a pure function of what is open and what was last told.

A group is an entity: all its alerts are told together. A new group waits `wait_s` for more to come, a known one tells
changes every `interval_s` at most and repeats what is unchanged every `repeat_s`. So an alert that resolves and fires
again within an interval tells nothing. A ticket that becomes a page is a change. Whoever has acknowledged is not told
again of the same. A muted alert is not told as firing; one that a silence muted is told anew when the silence ends.
That something is over is always told to those who were told that it began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from apps.observability.alert_models import AlertState, Severity
from apps.observability.alert_plans import Key

_TOLD = frozenset({AlertState.FIRING, AlertState.NO_DATA})


@dataclass(frozen=True)
class Cadence:
    """How often receivers are told, in seconds."""

    wait_s: float = 30.0
    interval_s: float = 300.0
    repeat_s: float = 14_400.0
    heartbeat_s: float = 300.0


@dataclass(frozen=True)
class Topic:
    """An alert as its notices see it: the newest one of its identity."""

    id: UUID
    rule: str
    entity_id: UUID
    state: str
    firing_at: datetime | None
    severity: str = Severity.TICKET
    acknowledged: bool = False
    inhibited: bool = False
    silenced: bool = False

    @property
    def key(self) -> Key:
        return (self.rule, self.entity_id)


@dataclass(frozen=True)
class Told:
    """What receivers know of an identity. `again`: a silence lay over it since."""

    state: str
    at: datetime
    again: bool = False
    severity: str = Severity.TICKET


@dataclass(frozen=True)
class Tell:
    """Send a notice about an alert: `alert.firing`, `alert.no_data`, `alert.resolved` or `alert.heartbeat`."""

    alert: UUID
    topic: str
    repeat: bool = False


@dataclass(frozen=True)
class Hush:
    """Remember that a silence lies over an identity that receivers know as firing."""

    alert: UUID


Notice = Tell | Hush


def notices(
    topics: Iterable[Topic], told: Mapping[Key, Told], heartbeats: frozenset[str], cadence: Cadence, now: datetime
) -> list[Notice]:
    """Return what to tell now. `topics`: the newest alert of every identity that is open, or that is known as open."""
    groups: dict[UUID, list[Topic]] = defaultdict(list)
    plan: list[Notice] = []
    for topic in topics:
        if topic.rule in heartbeats:
            plan += _heartbeat(topic, told.get(topic.key), cadence, now)
        else:
            groups[topic.entity_id].append(topic)
    for group in groups.values():
        plan += _group(group, told, cadence, now)
    return plan


def _heartbeat(topic: Topic, known: Told | None, cadence: Cadence, now: datetime) -> list[Notice]:
    due = known is None or now - known.at >= timedelta(seconds=cadence.heartbeat_s)
    return [Tell(topic.id, "alert.heartbeat")] if due and topic.state == AlertState.FIRING else []


def _group(group: list[Topic], told: Mapping[Key, Told], cadence: Cadence, now: datetime) -> list[Notice]:
    known = {topic.key: told[topic.key] for topic in group if topic.key in told}
    hushes: list[Notice] = [Hush(topic.id) for topic in group if _to_hush(topic, known.get(topic.key))]
    changed = [topic for topic in group if _news(topic, known.get(topic.key))]
    if changed and _due(changed, known.values(), cadence, now):
        return hushes + [Tell(topic.id, f"alert.{_state(topic)}") for topic in changed]
    return hushes + [
        Tell(topic.id, f"alert.{topic.state}", repeat=True)
        for topic in group
        if topic not in changed and _to_repeat(topic, known.get(topic.key), cadence, now)
    ]


def _state(topic: Topic) -> str:
    """Return what is to be known of a topic. One that does not fire (yet, again) is over."""
    return topic.state if topic.state in _TOLD and topic.firing_at is not None else AlertState.RESOLVED


def _news(topic: Topic, known: Told | None) -> bool:
    """Tell whether receivers know something else than what is, and may hear of it."""
    wanted = _state(topic)
    believed = known.state if known is not None else AlertState.RESOLVED
    if wanted == AlertState.RESOLVED:
        return believed != AlertState.RESOLVED
    if topic.silenced or topic.inhibited:
        return False
    return known is None or wanted != believed or known.again or _worse(topic, known)


def _worse(topic: Topic, known: Told) -> bool:
    """Tell whether what was told as a ticket has become a page."""
    return topic.severity == Severity.PAGE and known.severity != Severity.PAGE


def _due(changed: list[Topic], known: Iterable[Told], cadence: Cadence, now: datetime) -> bool:
    flushed = [row for row in known if row.state != AlertState.RESOLVED]
    if flushed:
        return now - max(row.at for row in flushed) >= timedelta(seconds=cadence.interval_s)
    first = min(topic.firing_at for topic in changed if topic.firing_at is not None)
    return now - first >= timedelta(seconds=cadence.wait_s)


def _to_hush(topic: Topic, known: Told | None) -> bool:
    fires = _state(topic) != AlertState.RESOLVED
    return topic.silenced and fires and known is not None and known.state != AlertState.RESOLVED and not known.again


def _to_repeat(topic: Topic, known: Told | None, cadence: Cadence, now: datetime) -> bool:
    if known is None or topic.acknowledged or topic.silenced or topic.inhibited or topic.firing_at is None:
        return False
    return topic.state in _TOLD and known.state == topic.state and now - known.at >= timedelta(seconds=cadence.repeat_s)
