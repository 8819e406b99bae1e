"""Every read of alerts, silences and rules, scoped by team. The heartbeat is in no list: it is no work for anybody."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.contrib.auth.models import AnonymousUser
from django.db.models import Case, F, IntegerField, Max, Min, Q, QuerySet, Value, When, Window
from django.db.models.functions import Coalesce

from apps.access.models import User
from apps.access.selectors import for_user
from apps.fleet.models import Node
from apps.lib.errors import NotFound
from apps.observability.alert_models import Alert, AlertRule, AlertState, RuleKind, Severity, Silence

Anyone = User | AnonymousUser
OPEN = "open"  # a filter beside the states: pending, firing and no data
ALL = "all"


def alerts_for(user: Anyone) -> QuerySet[Alert]:
    """Return the alerts of the user's teams."""
    rows = for_user(Alert.objects.exclude(rule__kind=RuleKind.HEARTBEAT), user)
    return rows.select_related("team", "rule", "owner", "acknowledged_by", "silenced_by__author", "inhibited_by")


def get_alert(user: Anyone, pk: UUID) -> Alert:
    """Return one of the user's alerts, the heartbeat too. Raises NotFound."""
    rows = for_user(Alert.objects.filter(pk=pk), user)
    related = ("team", "rule", "owner", "acknowledged_by", "silenced_by__author", "inhibited_by")
    found = rows.select_related(*related).first()
    if found is None:
        raise NotFound("alert_not_found", "There is no such alert in your teams; the open ones are under Alerts.")
    return found


def narrowed(
    rows: QuerySet[Alert], *, state: str = OPEN, severity: str = "", rule: str = "", node: str = "", text: str = ""
) -> QuerySet[Alert]:
    """Narrow alerts to a state («open» and «all» too), a severity, a rule, a node or model, a text."""
    if state == OPEN:
        rows = rows.exclude(state=AlertState.RESOLVED)
    elif state != ALL:
        rows = rows.filter(state=state)
    exact = {"severity": severity, "rule": rule, "entity_name": node}
    rows = rows.filter(**{name: value for name, value in exact.items() if value})
    if text:
        rows = rows.filter(Q(summary__icontains=text) | Q(entity_name__icontains=text) | Q(rule__slug__icontains=text))
    return rows


def by_urgency(rows: QuerySet[Alert]) -> QuerySet[Alert]:
    """Order alerts for an inbox: what fires and is not muted first, pages before tickets, oldest first.

    What is about one node stands together, in the place of its most urgent alert. What is over comes newest first.
    """
    muted = Q(inhibited_by__isnull=False) | Q(silenced_by__isnull=False)
    urgency = Case(
        When(state=AlertState.RESOLVED, then=Value(50)),
        When(muted, then=Value(40)),
        When(state=AlertState.FIRING, severity=Severity.PAGE, acknowledged_at__isnull=True, then=Value(0)),
        When(state=AlertState.FIRING, acknowledged_at__isnull=True, then=Value(1)),
        When(state=AlertState.FIRING, then=Value(10)),
        When(state=AlertState.NO_DATA, then=Value(20)),
        default=Value(30),
        output_field=IntegerField(),
    )
    rows = rows.annotate(urgency=urgency, place=Coalesce("node_id", "entity_id"))
    rows = rows.annotate(
        place_urgency=Window(Min("urgency"), partition_by=F("place")),
        place_since=Window(Min("pending_at"), partition_by=F("place")),
    )
    return rows.order_by(
        "place_urgency", F("resolved_at").desc(nulls_first=True), "place_since", "place", "urgency", "pending_at", "pk"
    )


def firing_count(user: Anyone) -> int:
    """Return how many alerts fire that nothing mutes: what the badge of every page says."""
    firing = Alert.objects.filter(state=AlertState.FIRING, inhibited_by=None, silenced_by=None)
    return for_user(firing.exclude(rule__kind=RuleKind.HEARTBEAT), user).count()


def judged_at(user: Anyone) -> datetime | None:
    """Return when alerts were last judged: the heartbeat is seen to hold at every tick. None before the first."""
    beats = for_user(Alert.objects.filter(rule__kind=RuleKind.HEARTBEAT).exclude(state=AlertState.RESOLVED), user)
    latest: datetime | None = beats.aggregate(at=Max("bad_at"))["at"]
    return latest


def of_node(user: Anyone, name: str, *, limit: int = 20) -> list[Alert]:
    """Return the open alerts of a node, then the newest that are over."""
    rows = alerts_for(user).filter(node_id__in=Node.objects.filter(name=name).values("pk"))
    return list(by_urgency(rows)[:limit])


def rules() -> QuerySet[AlertRule]:
    """Return the installation's rules: the same for every team."""
    return AlertRule.objects.order_by("slug")


def silences_for(user: Anyone) -> QuerySet[Silence]:
    """Return the silences of the user's teams, the one that ends last first."""
    rows = for_user(Silence.objects.all(), user)
    return rows.select_related("team", "author", "ended_by").order_by("-expires_at")


def in_force(rows: QuerySet[Silence], now: datetime, *, over: bool = False) -> QuerySet[Silence]:
    """Narrow silences to those that are in force or will be, or to those that are over."""
    is_over = Q(ended_at__isnull=False) | Q(expires_at__lte=now)
    return rows.filter(is_over) if over else rows.exclude(is_over)


def get_silence(user: Anyone, pk: UUID) -> Silence:
    """Return one of the user's silences. Raises NotFound."""
    found = silences_for(user).filter(pk=pk).first()
    if found is None:
        raise NotFound("silence_not_found", "There is no such silence in your teams; the list is under Silences.")
    return found
