"""The tick of alerts: read what holds → plan (pure) → write it down → plan what to tell (pure) → hand it to the outbox.

One evaluator at a time, by an advisory lock of its transaction. A person's command may come between: every move filters
on the state and revision that was read, and an alert that changed meanwhile is left to the next tick.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from apps.audit.outbox import emit
from apps.audit.transitions import SYSTEM, IllegalMove, Stale, move, record
from apps.fleet.hardware import mark_gpus
from apps.observability import alert_inputs
from apps.observability.alert_models import Alert, AlertNotice, AlertRule, AlertState, RuleKind, Silence
from apps.observability.alert_notices import Cadence, Hush, Notice, Told, Topic, notices
from apps.observability.alert_planner import plan
from apps.observability.alert_plans import Action, AlertView, Inhibit, Move, Open, RuleView, Snapshot, Update
from apps.observability.alert_rules import HEAT, ensure_rules

log = logging.getLogger(__name__)

TASK = "observability.evaluate"
BLIP_LIFE = timedelta(days=1)  # what cleared before it fired
ALERT_LIFE = timedelta(days=400)
_LOCK = 0x616C657274  # «alert»


def evaluate(now: datetime, inputs: alert_inputs.Inputs | None = None) -> int:
    """Bring every alert up to date and tell whom it concerns; return how many actions that took.

    Does nothing while another worker evaluates. `inputs` are read unless they are given.
    """
    with transaction.atomic():
        if not _lock():
            return 0
        rules = ensure_rules()
        seen = alert_inputs.read(now) if inputs is None else inputs
        actions = plan(_snapshot(rules, seen), now)
        for action in actions:
            _apply(action, now)
        _match_silences(now)
        _tell(now)
        mark_gpus(alert_inputs.health(seen, _hot()), now=now)
    return len(actions)


def _lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        return bool(cursor.fetchone()[0])


def _snapshot(rules: Iterable[AlertRule], seen: alert_inputs.Inputs) -> Snapshot:
    return Snapshot(
        rules={rule.slug: _rule(rule) for rule in rules},
        observations=tuple(seen.observations),
        alerts=tuple(_view(row) for row in Alert.objects.exclude(state=AlertState.RESOLVED)),
        present=seen.present,
        away=seen.away,
        silent=seen.silent,
        idle=seen.idle,
        unheard=seen.unheard,
        blind=seen.blind,
    )


def _rule(rule: AlertRule) -> RuleView:
    for_s = settings.FARRIER.alert_for_s if rule.for_s is None else rule.for_s
    return RuleView(rule.slug, rule.kind, rule.metric, rule.severity, for_s, rule.keep_firing_s, rule.enabled)


def _view(alert: Alert) -> AlertView:
    return AlertView(
        id=alert.pk,
        rule=alert.rule_id,
        entity_id=alert.entity_id,
        state=alert.state,
        severity=alert.severity,
        pending_at=alert.pending_at,
        bad_at=alert.bad_at,
        firing_at=alert.firing_at,
        node_id=alert.node_id,
        gpus=frozenset(member["gpu"] for member in alert.members),
        inhibited_by=alert.inhibited_by_id,
    )


def _apply(action: Action, now: datetime) -> None:
    """Write one action. What somebody else changed since it was read waits for the next tick."""
    try:
        with transaction.atomic():
            if isinstance(action, Open):
                _open(action, now)
            elif isinstance(action, Move):
                _move(action, now)
            elif isinstance(action, Update):
                _update(action, now)
            else:
                _inhibit(action)
    except (Stale, IllegalMove) as passed:
        log.info("%s; the next tick looks again", passed.sentence)


def _open(action: Open, now: datetime) -> None:
    seen = action.observation
    alert = Alert(
        rule_id=seen.rule,
        team_id=seen.entity.team_id,
        entity_kind=seen.entity.kind,
        entity_id=seen.entity.id,
        entity_name=seen.entity.name,
        pending_at=now,
        bad_at=now,
        **_shown(action),
    )
    alert.save(force_insert=True)
    record(alert, "alert.pending", actor=SYSTEM, reason=action.summary, now=now, to_state=AlertState.PENDING)


def _shown(action: Open | Update) -> dict[str, Any]:
    """Return the columns that follow what is seen."""
    seen = action.observation
    return {
        "node_id": seen.node_id,
        "labels": {"rule": seen.rule, **seen.entity.labels, "severity": action.severity},
        "severity": action.severity,
        "members": [asdict(member) for member in seen.members],
        "gpus": seen.gpus,
        "simulated": seen.simulated,
        "summary": action.summary,
        "reason": action.reason,
    }


_STAMPS = {
    AlertState.FIRING: {"no_data_at": None},
    AlertState.NO_DATA: {},
    AlertState.RESOLVED: {"inhibited_by": None},
    AlertState.PENDING: {"no_data_at": None},
}


def _move(action: Move, now: datetime) -> None:
    alert = Alert.objects.get(pk=action.alert)
    to = AlertState(action.to)
    changes: dict[str, Any] = dict(_STAMPS[to])
    if to == AlertState.FIRING and alert.firing_at is None:
        changes["firing_at"] = now
    elif to == AlertState.NO_DATA:
        changes["no_data_at"] = now
    elif to == AlertState.RESOLVED:
        changes["resolved_at"] = now
    elif to == AlertState.PENDING:
        changes["pending_at"] = now
    move(alert, to, actor=SYSTEM, reason=action.reason, now=now, changes=changes, data={"summary": alert.summary})


def _update(action: Update, now: datetime) -> None:
    Alert.objects.filter(pk=action.alert).exclude(state=AlertState.RESOLVED).update(bad_at=now, **_shown(action))


def _inhibit(action: Inhibit) -> None:
    Alert.objects.filter(pk=action.alert).update(inhibited_by=action.by)


def _match_silences(now: datetime) -> None:
    """Note at every open alert which silence lies over it, if any."""
    active = list(active_silences(now))
    open_alerts = Alert.objects.exclude(state=AlertState.RESOLVED)
    if not active:
        open_alerts.filter(silenced_by__isnull=False).update(silenced_by=None)
        return
    for alert in open_alerts.only("pk", "team_id", "labels", "silenced_by_id"):
        over = next((row for row in active if row.team_id == alert.team_id and covers(row, alert.labels)), None)
        found = over.pk if over else None
        if found != alert.silenced_by_id:
            Alert.objects.filter(pk=alert.pk).update(silenced_by=found)


def active_silences(now: datetime) -> Iterable[Silence]:
    """Return the silences in force, the one that lasts longest first."""
    rows = Silence.objects.filter(starts_at__lte=now, expires_at__gt=now, ended_at__isnull=True)
    return rows.order_by("-expires_at")


def covers(silence: Silence, labels: dict[str, str]) -> bool:
    """Tell whether a silence's matchers all fit an alert's labels."""
    return all(labels.get(name) == value for name, value in silence.matchers.items())


# ---- telling ---------------------------------------------------------------------------------------------------------


def cadence() -> Cadence:
    """Return how often receivers are told, as this installation sets it."""
    env = settings.FARRIER
    return Cadence(env.alert_group_wait_s, env.alert_group_interval_s, env.alert_repeat_s, env.alert_heartbeat_s)


def _tell(now: datetime) -> None:
    known = {(row.rule_id, row.entity_id): row for row in AlertNotice.objects.select_related("alert__rule")}
    alerts = {
        (row.rule_id, row.entity_id): row
        for row in Alert.objects.exclude(state=AlertState.RESOLVED).select_related("rule", "team")
    }
    for key, row in known.items():
        if row.state != AlertState.RESOLVED:
            alerts.setdefault(key, row.alert)
    by_id = {row.pk: row for row in alerts.values()}
    told = {key: Told(row.state, row.at, row.again, row.severity) for key, row in known.items()}
    beats = frozenset(row.rule_id for row in alerts.values() if row.rule.kind == RuleKind.HEARTBEAT)
    for notice in notices([_topic(row) for row in alerts.values()], told, beats, cadence(), now):
        _deliver(notice, by_id[notice.alert], now)


def _topic(alert: Alert) -> Topic:
    return Topic(
        id=alert.pk,
        rule=alert.rule_id,
        entity_id=alert.entity_id,
        state=alert.state,
        firing_at=alert.firing_at,
        severity=alert.severity,
        acknowledged=alert.acknowledged_at is not None,
        inhibited=alert.inhibited_by_id is not None,
        silenced=alert.silenced_by_id is not None,
    )


def _deliver(notice: Notice, alert: Alert, now: datetime) -> None:
    """Hand a notice to the outbox, and remember that it was told; both commit together."""
    identity: dict[str, Any] = {
        "rule_id": alert.rule_id,
        "entity_kind": alert.entity_kind,
        "entity_id": alert.entity_id,
    }
    if isinstance(notice, Hush):
        AlertNotice.objects.filter(**identity).update(again=True)
        return
    emit(notice.topic, payload(alert, now) | {"repeat": notice.repeat}, alert.team_id, now=now)
    state = AlertState.FIRING if notice.topic == "alert.heartbeat" else notice.topic.removeprefix("alert.")
    changes = {"team_id": alert.team_id, "alert": alert, "state": state, "severity": alert.severity}
    changes |= {"at": now, "again": False}
    AlertNotice.objects.update_or_create(**identity, defaults=changes)


def payload(alert: Alert, now: datetime) -> dict[str, Any]:
    """Return what a receiver is told of an alert. `key` stays the same when it fires again."""
    return {
        "key": f"{alert.rule_id}/{alert.entity_id}",
        "alert": str(alert.pk),
        "rule": alert.rule_id,
        "severity": alert.severity,
        "state": alert.state,
        "summary": alert.summary,
        "reason": alert.reason,
        "labels": alert.labels,
        "simulated": alert.simulated,
        "since": _iso(alert.firing_at or alert.pending_at),
        "resolved_at": _iso(alert.resolved_at),
        "members": [member["gpu"] for member in alert.members],
        "acknowledged": alert.acknowledged_at is not None,
        "url": f"{settings.FARRIER.origin}/alerts/{alert.pk}/",
        "at": _iso(now),
    }


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _hot() -> dict[str, str]:
    """Return the members of firing heat alerts, with the alert's sentence."""
    rows = Alert.objects.filter(state=AlertState.FIRING, rule__in=HEAT - {"gpu-throttled"})
    return {member["gpu"]: row.summary for row in rows for member in row.members}


def forget(*, now: datetime) -> int:
    """Delete alerts long over, and what cleared before it fired a day ago; return how many. Events stay."""
    over = Alert.objects.filter(state=AlertState.RESOLVED)
    blips = over.filter(firing_at=None, resolved_at__lt=now - BLIP_LIFE)
    old = over.filter(resolved_at__lt=now - ALERT_LIFE)
    return sum(rows.delete()[1].get(Alert._meta.label, 0) for rows in (blips, old))
