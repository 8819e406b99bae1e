"""What people do to alerts: acknowledge, own, silence. What alerts do by themselves is in alerting.py.

None of it changes an alert's state, so it never contends with the tick; `expected_revision` tells a caller whose page
is old that the state has moved on.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import transaction

from apps.access.models import Role, Team, User
from apps.access.services import require_actor
from apps.audit.outbox import emit
from apps.audit.transitions import Actor, Stale, record
from apps.lib.errors import Conflict, DomainError, Forbidden
from apps.lib.wake import wake
from apps.observability.alert_models import Alert, AlertState, RuleKind, Silence, check_matchers
from apps.observability.alerting import TASK, covers, payload

SILENCE_MAX = timedelta(days=30)  # a longer one is forgotten: switch the rule off instead


@dataclass(frozen=True)
class _Command:
    actor: Actor
    now: datetime
    expected_revision: int | None

    def lock(self, alert: Alert) -> Alert:
        """Return the alert's row, locked, once it is sure that the actor may act on what they saw."""
        require_actor(self.actor, alert.team_id, Role.OPERATOR)
        rows = Alert.objects.select_for_update(of=("self",), no_key=True).select_related("rule", "acknowledged_by")
        locked = rows.get(pk=alert.pk)
        if self.expected_revision is not None and locked.revision != self.expected_revision:
            raise Stale(locked)
        if locked.rule.kind == RuleKind.HEARTBEAT:
            raise Conflict("heartbeat", "The heartbeat is meant to fire; nobody acts on it.")
        if locked.state == AlertState.RESOLVED:
            raise Conflict("already_resolved", f"The alert {locked} has resolved; there is nothing to act on.")
        return locked

    @property
    def person(self) -> User:
        if self.actor.user is None:
            raise Forbidden("person_needed", "An alert is acknowledged and owned by a person.")
        return self.actor.user


def acknowledge_alert(
    alert: Alert, *, actor: Actor, now: datetime, note: str = "", expected_revision: int | None = None
) -> Alert:
    """Say that somebody is on it: repeats stop. Done again it changes nothing; whoever was first stands.

    Raises Forbidden, Conflict (`already_resolved`), Stale.
    """
    command = _Command(actor, now, expected_revision)
    with transaction.atomic():
        locked = command.lock(alert)
        if locked.acknowledged_at is not None:
            return locked
        locked.acknowledged_by, locked.acknowledged_at = command.person, now
        locked.acknowledged_note = note.strip()
        fields = ["acknowledged_by", "acknowledged_at", "acknowledged_note"]
        if locked.owner_id is None:
            locked.owner = command.person
            fields.append("owner")
        locked.save(update_fields=fields)
        record(locked, "alert.acknowledged", actor=actor, reason=note.strip(), now=now)
        emit(
            "alert.acknowledged",
            payload(locked, now) | {"by": actor.label, "note": note.strip()},
            locked.team_id,
            now=now,
        )
    return locked


def unacknowledge_alert(
    alert: Alert, *, actor: Actor, now: datetime, note: str = "", expected_revision: int | None = None
) -> Alert:
    """Hand it back: repeats go on. Raises as acknowledge_alert does."""
    command = _Command(actor, now, expected_revision)
    with transaction.atomic():
        locked = command.lock(alert)
        if locked.acknowledged_at is None:
            return locked
        locked.acknowledged_by = locked.acknowledged_at = locked.owner = None
        locked.acknowledged_note = ""
        locked.save(update_fields=["acknowledged_by", "acknowledged_at", "acknowledged_note", "owner"])
        record(locked, "alert.unacknowledged", actor=actor, reason=note.strip(), now=now)
    return locked


def own_alert(
    alert: Alert, *, actor: Actor, now: datetime, note: str = "", expected_revision: int | None = None
) -> Alert:
    """Take an alert over, from whoever had it. Raises as acknowledge_alert does."""
    command = _Command(actor, now, expected_revision)
    with transaction.atomic():
        locked = command.lock(alert)
        if locked.owner_id == command.person.pk:
            return locked
        locked.owner = command.person
        locked.save(update_fields=["owner"])
        record(locked, "alert.owned", actor=actor, reason=note.strip(), now=now)
    return locked


def create_silence(
    *,
    team: Team | UUID,
    matchers: dict[str, str],
    reason: str,
    expires_at: datetime,
    actor: Actor,
    now: datetime,
    starts_at: datetime | None = None,
) -> Silence:
    """Have nobody told of what matches, until it expires. Alerts go on and are shown.

    Raises Forbidden, DomainError (`bad_matchers`, `reason_missing`, `bad_expiry`).
    """
    require_actor(actor, team, Role.OPERATOR)
    if actor.user is None:
        raise Forbidden("person_needed", "A silence has a person as its author.")
    starts = starts_at or now
    if not reason.strip():
        raise DomainError("reason_missing", "Say why you silence it: whoever comes after you reads it.")
    if expires_at <= max(starts, now) or expires_at - starts > SILENCE_MAX:
        raise DomainError("bad_expiry", "A silence must end in the future, at most 30 days after it begins.")
    try:
        wanted = check_matchers(matchers)
    except ValidationError as bad:
        raise DomainError("bad_matchers", " ".join(bad.messages)) from bad
    with transaction.atomic():
        silence = Silence.objects.create(
            team_id=team.pk if isinstance(team, Team) else team,
            matchers=wanted,
            author=actor.user,
            reason=reason.strip(),
            starts_at=starts,
            expires_at=expires_at,
        )
        record(silence, "silence.created", actor=actor, reason=reason.strip(), now=now, data={"matchers": wanted})
        if starts <= now:
            _lay_over(silence)
        wake(TASK, queue="observability")
    return silence


def _lay_over(silence: Silence) -> None:
    """Mark the open alerts that it covers at once, so that the page that comes back says so."""
    rows = Alert.objects.filter(team_id=silence.team_id, silenced_by__isnull=True).exclude(state=AlertState.RESOLVED)
    over = [row.pk for row in rows.only("pk", "labels") if covers(silence, row.labels)]
    Alert.objects.filter(pk__in=over).update(silenced_by=silence)


def end_silence(silence: Silence, *, actor: Actor, reason: str, now: datetime) -> Silence:
    """End a silence before its time; what still fires is told anew. Raises Forbidden, Conflict (`silence_over`)."""
    require_actor(actor, silence.team_id, Role.OPERATOR)
    if actor.user is None:
        raise Forbidden("person_needed", "A silence is ended by a person.")
    if not reason.strip():
        raise DomainError("reason_missing", "Say why you end it: whoever comes after you reads it.")
    with transaction.atomic():
        hit = Silence.objects.filter(pk=silence.pk, ended_at=None, expires_at__gt=now).update(
            ended_at=now, ended_by=actor.user, end_reason=reason.strip()
        )
        if hit != 1:
            raise Conflict("silence_over", "The silence is over already.")
        Alert.objects.filter(silenced_by=silence).update(silenced_by=None)
        record(silence, "silence.ended", actor=actor, reason=reason.strip(), now=now)
        wake(TASK, queue="observability")
    silence.refresh_from_db()
    return silence
