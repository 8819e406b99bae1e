"""What becomes of every alert: a pure function of what is seen, what is open, and one reading of the clock.

    seen to hold        opens (pending), fires once it has held for `for`
    seen not to hold    pending resolves at once, firing after `keep_firing_for`
    can't be judged     no_data: missing data neither fires nor resolves
    entity or rule gone resolves, and says so

Then, over what will be open: which alert speaks for a node. Nothing here notifies: that is alert_notices.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from apps.observability.alert_models import AlertState, RuleKind, Severity
from apps.observability.alert_plans import Action, AlertView, Inhibit, Move, Observation, Open, Snapshot, Update
from apps.observability.alert_rules import HEAT, RANK
from apps.observability.alert_words import say

_BY_POLLS = frozenset(
    {RuleKind.GPU_XID, RuleKind.GPU_LOST, RuleKind.GPU_ECC, RuleKind.THROTTLED, RuleKind.NO_TELEMETRY}
)


def plan(snapshot: Snapshot, now: datetime) -> list[Action]:
    """Return what to do; the same snapshot and time give the same list."""
    seen = {row.key: row for row in snapshot.observations if _watched(snapshot, row.rule)}
    actions: list[Action] = []
    after: list[AlertView] = []
    for alert in snapshot.alerts:
        observation = seen.pop(alert.key, None)
        move = _move(snapshot, alert, observation, now)
        if move is not None:
            actions.append(move)
            alert = replace(alert, state=move.to)
        if observation is not None:
            actions.append(_update(snapshot, alert, observation))
            alert = replace(alert, gpus=frozenset(member.gpu for member in observation.members))
        if alert.state != AlertState.RESOLVED:
            after.append(alert)
    actions += [_open(snapshot, observation) for observation in seen.values()]
    return actions + inhibitions(after)


def _watched(snapshot: Snapshot, slug: str) -> bool:
    rule = snapshot.rules.get(slug)
    return rule is not None and rule.enabled


def _move(snapshot: Snapshot, alert: AlertView, observation: Observation | None, now: datetime) -> Move | None:
    """Return an open alert's next state, None when it stays."""
    if not _watched(snapshot, alert.rule):
        return Move(alert.id, AlertState.RESOLVED, f"The rule {alert.rule} was switched off.")
    if alert.entity_id not in snapshot.present:
        return Move(alert.id, AlertState.RESOLVED, "What it was about is no longer watched.")
    if observation is not None:
        return _holds(snapshot, alert, now)
    missing = _missing(snapshot, alert)
    if missing:
        return None if alert.state == AlertState.NO_DATA else Move(alert.id, AlertState.NO_DATA, missing)
    return _cleared(snapshot, alert, now)


def _holds(snapshot: Snapshot, alert: AlertView, now: datetime) -> Move | None:
    rule = snapshot.rules[alert.rule]
    if alert.state == AlertState.NO_DATA:
        if alert.firing_at is not None:
            return Move(alert.id, AlertState.FIRING, "Its data came back, and it still holds.")
        return Move(alert.id, AlertState.PENDING, "Its data came back, and it holds.")
    if alert.state == AlertState.PENDING and now - alert.pending_at >= timedelta(seconds=rule.for_s):
        held = f"It has held for {rule.for_s:.0f} s." if rule.for_s else "It holds."
        return Move(alert.id, AlertState.FIRING, held)
    return None


def _cleared(snapshot: Snapshot, alert: AlertView, now: datetime) -> Move | None:
    rule = snapshot.rules[alert.rule]
    if alert.state == AlertState.PENDING:
        return Move(alert.id, AlertState.RESOLVED, "It cleared before it fired.")
    if now - alert.bad_at >= timedelta(seconds=rule.keep_firing_s):
        return Move(alert.id, AlertState.RESOLVED, "It has cleared.")
    if alert.state == AlertState.NO_DATA:
        # the data is back and says that it cleared: it goes on as what it was until keep_firing_for is over
        back = AlertState.FIRING if alert.firing_at is not None else AlertState.RESOLVED
        return Move(alert.id, back, "Its data came back; it no longer holds.")
    return None


def _missing(snapshot: Snapshot, alert: AlertView) -> str:
    """Return why an alert's condition can't be judged, or nothing."""
    kind = snapshot.rules[alert.rule].kind
    if kind == RuleKind.ANOMALY:
        return _unjudged(snapshot, alert)
    if kind in _BY_POLLS and alert.entity_id in snapshot.away:
        return "The node does not poll."
    if kind == RuleKind.SLO and alert.entity_id in snapshot.idle:
        return "No request was answered in five minutes."
    return ""


def _unjudged(snapshot: Snapshot, alert: AlertView) -> str:
    """Return why it isn't known whether an anomaly goes on. One GPU of it that is silent is enough: it may be hot."""
    if alert.entity_id in snapshot.silent:
        return "No GPU sample has come for three minutes."
    if alert.gpus & snapshot.unheard:
        return "A GPU that it is about sends no samples."
    return "The detector has judged nothing for five minutes." if snapshot.blind else ""


def _severity(snapshot: Snapshot, observation: Observation) -> str:
    """Return how urgent an observation is. Heat is a ticket until clocks are slowed down for it."""
    if observation.severity:
        return observation.severity
    slowed = ("gpu-throttled", observation.entity.id)
    if observation.rule == "gpu-temperature" and any(row.key == slowed for row in snapshot.observations):
        return Severity.PAGE
    return snapshot.rules[observation.rule].severity


def _update(snapshot: Snapshot, alert: AlertView, observation: Observation) -> Update:
    summary, reason = say(observation, snapshot.rules[observation.rule])
    return Update(alert.id, observation, _severity(snapshot, observation), summary, reason)


def _open(snapshot: Snapshot, observation: Observation) -> Open:
    summary, reason = say(observation, snapshot.rules[observation.rule])
    return Open(observation, _severity(snapshot, observation), summary, reason)


def inhibitions(alerts: Iterable[AlertView]) -> list[Inhibit]:
    """Return the changes to which alert speaks for which: node down > Xid > GPU anomaly > latency, on one node."""
    by_node: dict[UUID, list[AlertView]] = defaultdict(list)
    rows = list(alerts)
    for alert in rows:
        if alert.node_id is not None:
            by_node[alert.node_id].append(alert)
    changes = []
    for alert in rows:
        rivals = by_node.get(alert.node_id, ()) if alert.node_id is not None else ()
        over = [other for other in rivals if _speaks_for(other, alert)]
        best = max(over, key=lambda other: RANK[other.rule]).id if over else None
        if best != alert.inhibited_by:
            changes.append(Inhibit(alert.id, best))
    return changes


def _speaks_for(other: AlertView, alert: AlertView) -> bool:
    """Tell whether `other` explains `alert`, so that nobody needs to hear of both."""
    if RANK.get(other.rule, 0) <= RANK.get(alert.rule, 0):
        return False
    if {other.rule, alert.rule} <= HEAT:
        # heat shows in one series a minute before the other: the pending one already speaks for both
        return other.state in (AlertState.FIRING, AlertState.PENDING)
    if other.state != AlertState.FIRING:
        return False
    if other.rule == "node-down" or alert.rule == "model-slo":
        return True
    if other.rule == "no-telemetry":
        return alert.state == AlertState.NO_DATA
    return bool(alert.gpus) and alert.gpus <= other.gpus
