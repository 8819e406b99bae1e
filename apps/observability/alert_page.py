"""What an alert's page says beside the alert: what it touches, how far it may go, what came before, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import isnan
from urllib.parse import urlencode

from django.db.models import Q
from django.utils.formats import date_format

from apps.access.models import User
from apps.audit import selectors as audit
from apps.audit.models import Event
from apps.fleet.models import DesiredDeployment, Gpu, Node
from apps.observability import samples, timeseries
from apps.observability.alert_models import Alert, AlertState, RuleKind
from apps.observability.alert_words import BAND_SCALES
from protocol.metrics import GPU_BY_NAME

BEFORE = timedelta(hours=1)
BEFORE_SHOWN = 6
TRAFFIC = timedelta(minutes=10)
SLOWED_C = 85.0  # at which the agents report a board as hot and its clocks are slowed (node/agent/hardware)
RANGES = (("1h", "1 h"), ("6h", "6 h"), ("24h", "24 h"), ("7d", "7 d"))
DEFAULT_RANGE = "6h"


@dataclass(frozen=True)
class Impact:
    """A model that the node serves, with the node's share of its answers, and how its latency differs."""

    model: str
    share: float | None
    latency: str  # the mean on this node beside the mean elsewhere


@dataclass(frozen=True)
class MemberRow:
    """A GPU of the alert, as the table shows it."""

    gpu: str
    index: int
    observed: str
    expected: str
    score: str
    note: str
    simulated: bool
    chart: str  # its address on the explore page


@dataclass(frozen=True)
class ChartOf:
    """What observability/_chart.html draws."""

    title: str
    unit: str
    src: str
    csv: str
    table: str
    simulated: bool
    height: int = 230


@dataclass(frozen=True)
class AlertPage:
    """Everything beside the alert itself."""

    node: Node | None
    members: list[MemberRow]
    charts: list[ChartOf]
    impacts: list[Impact]
    margin: str
    before: list[Event]
    ranges: Sequence[tuple[str, str]] = RANGES
    wanted: str = DEFAULT_RANGE


def alert_page(user: User, alert: Alert, wanted: str, now: datetime) -> AlertPage:
    """Return what an alert's page shows; `wanted` is the charts' range."""
    node = Node.objects.filter(pk=alert.node_id).first() if alert.node_id else None
    known = {gpu.uuid: gpu for gpu in Gpu.objects.filter(node=node)} if node else {}
    wanted = wanted if wanted in dict(RANGES) else DEFAULT_RANGE
    return AlertPage(
        node=node,
        members=[_member(alert, member, known) for member in alert.members],
        charts=_charts(alert, node, wanted),
        impacts=_impacts(node, now) if node and alert.state != AlertState.RESOLVED else [],
        margin=_margin(alert, list(known.values())),
        before=_before(user, alert, node),
        wanted=wanted,
    )


def _member(alert: Alert, member: dict[str, object], known: dict[str, Gpu]) -> MemberRow:
    gpu = known.get(str(member["gpu"]))
    metric = str(member.get("metric") or "")
    observed, expected = _number(member.get("observed")), _number(member.get("expected"))
    scale, z = _number(member.get("scale")) or 0.0, _number(member.get("z"))
    half = BAND_SCALES * scale
    unit = GPU_BY_NAME[metric].unit if metric in GPU_BY_NAME else ""
    query = urlencode({"metric": metric or "temperature_c", "gpu": member["gpu"], "range": DEFAULT_RANGE, "band": 1})
    kind = str(member.get("kind") or "").replace("_", " ")
    return MemberRow(
        gpu=str(member["gpu"]),
        index=int(str(member["index"])),
        observed="–" if observed is None else f"{observed:.1f} {unit}",
        expected="–" if expected is None else f"{expected - half:.1f} to {expected + half:.1f} {unit}",
        score="–" if z is None else f"{z:.1f}",
        note=str(member.get("note") or "") or ("" if kind == "none" else kind),
        simulated=bool(gpu.simulated if gpu else alert.simulated),
        chart=f"/explore/?{query}",
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _charts(alert: Alert, node: Node | None, wanted: str) -> list[ChartOf]:
    """Return the band of the member that is furthest off, and all the node's GPUs beside each other."""
    metric = GPU_BY_NAME.get(alert.rule.metric or "temperature_c")
    if metric is None or node is None or alert.entity_kind != "node" or alert.rule.kind == RuleKind.NODE_DOWN:
        return []
    charts = []
    if alert.rule.kind == RuleKind.ANOMALY and alert.members:
        worst = max(alert.members, key=lambda member: abs(member.get("z") or 0.0))
        title = f"{metric.label} of GPU {worst['index']} against its expected band"
        query = {"metric": metric.name, "gpu": worst["gpu"], "band": 1, "range": wanted}
        charts.append(_chart(title, metric.unit, query, alert.simulated))
    query = {"metric": metric.name, "node": node.name, "range": wanted}
    charts.append(_chart(f"{metric.label} of all GPUs of {node.name}", metric.unit, query, alert.simulated))
    return charts


def _chart(title: str, unit: str, query: dict[str, object], simulated: bool) -> ChartOf:
    text = urlencode(query)
    return ChartOf(
        title, unit, f"/series.json?{text}", f"/series.csv?{text}", f"/explore/?{text}&view=table", simulated
    )


def _impacts(node: Node, now: datetime) -> list[Impact]:
    slugs = DesiredDeployment.objects.filter(node=node).order_by("model__slug").values_list("model__slug", flat=True)
    wanted = list(dict.fromkeys(slugs))
    rows = timeseries.request_minutes(None, None, now - TRAFFIC, now) if wanted else []
    impacts = []
    for slug in wanted:
        here = [row for row in rows if row.model == slug and row.node_id == node.pk]
        elsewhere = [row for row in rows if row.model == slug and row.node_id != node.pk]
        count, others = sum(row.requests for row in here), sum(row.requests for row in elsewhere)
        share = count / (count + others) if count + others else None
        impacts.append(Impact(slug, share, _slower(here, elsewhere) if count and others else ""))
    return impacts


def _slower(here: list[timeseries.RequestMinute], elsewhere: list[timeseries.RequestMinute]) -> str:
    excess_ms = _mean_ms(here) - _mean_ms(elsewhere)
    return f"{abs(excess_ms):.1f} ms {'slower' if excess_ms >= 0 else 'faster'} than elsewhere on average"


def _mean_ms(rows: list[timeseries.RequestMinute]) -> float:
    return sum(row.latency_us_sum for row in rows) / sum(row.requests for row in rows) / 1_000


def _margin(alert: Alert, gpus: list[Gpu]) -> str:
    """Return how far the hottest member is from where its clocks are slowed; nothing where heat is not the matter."""
    if alert.rule.metric != "temperature_c" or alert.state == AlertState.RESOLVED:
        return ""
    about = {member["gpu"] for member in alert.members}
    newest = samples.latest([gpu.number for gpu in gpus if gpu.uuid in about])
    seen = [row.values.get("temperature_c", float("nan")) for row in newest.values()]
    seen += [member["observed"] for member in alert.members if not newest and member.get("observed") is not None]
    hottest = max((value for value in seen if not isnan(value)), default=None)
    if hottest is None:
        return ""
    if hottest >= SLOWED_C:
        return f"none: the hottest is at {hottest:.0f} °C, clocks are slowed from {SLOWED_C:.0f} °C on"
    return f"{SLOWED_C - hottest:.0f} °C until clocks are slowed (at {SLOWED_C:.0f} °C)"


def _before(user: User, alert: Alert, node: Node | None) -> list[Event]:
    """Return what happened to the node, to rollouts, and in drills in the hour before it began, newest first."""
    if node is None:
        return []
    about = Q(object_type="fleet.node", object_id=str(node.pk)) | Q(verb__startswith="drill.")
    ids = DesiredDeployment.objects.filter(node=node, rollout_id__isnull=False).values_list("rollout_id", flat=True)
    about |= Q(object_type="rollouts.rollout", object_id__in=[str(pk) for pk in ids])
    # what was done about it in its first minutes is no cause, but a drill that began with it is
    events = audit.events_for(user, since=alert.pending_at - BEFORE, until=alert.pending_at)
    return list(events.filter(about)[:BEFORE_SHOWN])


def until_choices(now: datetime) -> list[tuple[str, str]]:
    """Return how long a silence may be asked for, as (minutes, words)."""
    return [
        (str(minutes), f"{words}, until {date_format(now + timedelta(minutes=minutes), 'H:i')} UTC")
        for minutes, words in ((30, "30 min"), (120, "2 h"), (480, "8 h"))
    ] + [("1440", "1 day"), ("10080", "7 days")]
