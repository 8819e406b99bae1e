"""What alerts judge by, read from the fleet, the samples and the detector: one constant number of queries a tick.

Only what holds becomes an observation, so that the planner's work follows what is wrong, not the fleet's size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Max

from apps.access.models import Team
from apps.fleet.models import Condition, Gpu, GpuHealth, Node
from apps.fleet.selectors import OVERDUE_POLLS
from apps.models.models import RegisteredModel
from apps.observability import detection, samples, timeseries
from apps.observability.alert_models import EntityKind
from apps.observability.alert_plans import Entity, Member, Observation
from apps.observability.alert_rules import xid_severity
from apps.observability.alert_words import BAND_SCALES, details_in, indices_in, xids_in

SILENT = timedelta(minutes=3)  # without a sample for this long, nothing is known of a GPU
BLIND = timedelta(minutes=5)  # a judged minute is two minutes old when all is well
SLO_WINDOW = timedelta(minutes=5)
SLO_SHARE = 0.95
SLO_REQUESTS = 20  # fewer in the window say nothing
HEALTH_RANK = {health: rank for rank, health in enumerate(GpuHealth)}

ANOMALY_RULES = {
    "temperature_c": "gpu-temperature",
    "memory_temperature_c": "gpu-memory-temperature",
    "power_w": "gpu-power",
}
ONLY_UP = frozenset({"temperature_c", "memory_temperature_c"})  # a cool GPU is no fault
# A series that hardly moves has a tiny scale: a large score alone may be half a degree.
MIN_EXCESS = {"temperature_c": 3.0, "memory_temperature_c": 3.0, "power_w": 25.0}
FAULT_RULES = {"GpuXid": "gpu-xid", "GpuLost": "gpu-lost", "GpuEcc": "gpu-ecc", "GpuThrottled": "gpu-throttled"}


@dataclass(frozen=True)
class NodeRow:
    """A node that is watched."""

    id: UUID
    name: str
    zone: str
    team_id: UUID
    last_seen_at: datetime | None
    created_at: datetime
    poll_interval_s: float

    @property
    def entity(self) -> Entity:
        return Entity(EntityKind.NODE, self.id, self.name, self.team_id, {"node": self.name, "zone": self.zone})


@dataclass(slots=True)  # not frozen, which is twice as slow to make: a tick makes one of every GPU of the fleet
class GpuRow:
    """A GPU, with the health that it is known by."""

    uuid: str
    number: int
    node_id: UUID
    index: int
    simulated: bool
    health: str
    health_reason: str


@dataclass
class Inputs:
    """Everything that one evaluation reads beside the alerts themselves."""

    now: datetime
    nodes: dict[UUID, NodeRow]
    gpus: dict[UUID, list[GpuRow]]  # by node
    conditions: list[Condition]  # those that hold and are a GPU's
    heard: set[int]
    observations: list[Observation] = field(default_factory=list)
    away: frozenset[UUID] = frozenset()
    silent: frozenset[UUID] = frozenset()
    idle: frozenset[UUID] = frozenset()
    unheard: frozenset[str] = frozenset()
    blind: bool = False
    present: frozenset[UUID] = frozenset()


def read(now: datetime) -> Inputs:
    """Return what holds right now, and what can't be judged."""
    inputs = _fleet(now)
    inputs.away = frozenset(node.id for node in inputs.nodes.values() if _overdue(node, now))
    inputs.silent = frozenset(
        node for node, gpus in inputs.gpus.items() if not any(gpu.number in inputs.heard for gpu in gpus)
    )
    found = detection.findings(now)
    inputs.blind = found.minute is None or now - found.minute > BLIND
    inputs.unheard = frozenset(
        gpu.uuid
        for gpus in inputs.gpus.values()
        for gpu in gpus
        if gpu.number not in inputs.heard or gpu.number in found.silent
    )
    teams = list(Team.objects.values_list("pk", "slug"))
    models = {slug: (pk, team) for pk, slug, team in RegisteredModel.objects.values_list("pk", "slug", "team_id")}
    answered = timeseries.request_minutes(None, None, now - SLO_WINDOW, now)
    inputs.observations = [
        *_down(inputs),
        *_without_samples(inputs),
        *_faults(inputs),
        *_anomalies(inputs, () if inputs.blind else found.rows),
        *_slow_models(answered, models),
        *(Observation("heartbeat", Entity(EntityKind.TEAM, pk, slug, pk)) for pk, slug in teams),
    ]
    busy = {models[slug][0] for slug, count in _requests(answered).items() if count >= SLO_REQUESTS and slug in models}
    inputs.idle = frozenset(pk for pk, _ in models.values() if pk not in busy)
    inputs.present = frozenset([*inputs.nodes, *(pk for pk, _ in models.values()), *(pk for pk, _ in teams)])
    return inputs


def _fleet(now: datetime) -> Inputs:
    columns = ("id", "name", "zone", "team_id", "last_seen_at", "created_at", "pool__poll_interval_s")
    nodes = {row[0]: NodeRow(*row) for row in Node.objects.filter(phase__in=Node.MAY_TALK).values_list(*columns)}
    gpus: dict[UUID, list[GpuRow]] = defaultdict(list)
    fields = ("uuid", "number", "node_id", "index", "simulated", "health", "health_reason")
    for row in Gpu.objects.order_by("index").values_list(*fields):
        if row[2] in nodes:
            gpus[row[2]].append(GpuRow(*row))
    conditions = Condition.objects.filter(status="true", type__in=list(Condition.SICK), node__phase__in=Node.MAY_TALK)
    return Inputs(now, nodes, dict(gpus), list(conditions), samples.gpus_heard(now - SILENT))


def _overdue(node: NodeRow, now: datetime) -> bool:
    """Tell whether a node that has polled before missed three polls."""
    silent_s = OVERDUE_POLLS * node.poll_interval_s
    return node.last_seen_at is not None and now - node.last_seen_at > timedelta(seconds=silent_s)


def _down(inputs: Inputs) -> Iterable[Observation]:
    for pk in inputs.away:
        node = inputs.nodes[pk]
        text = f"It is to poll every {node.poll_interval_s:.0f} s."
        yield _of_node(inputs, node, "node-down", since=node.last_seen_at, text=text)


def _without_samples(inputs: Inputs) -> Iterable[Observation]:
    """Nodes that poll while their samples have stopped. One that has just come may still be on its first."""
    rows = [
        inputs.nodes[pk]
        for pk in sorted(inputs.silent - inputs.away)
        if inputs.nodes[pk].last_seen_at is not None and inputs.now - inputs.nodes[pk].created_at > SILENT
    ]
    stopped = _stopped_at([node.id for node in rows]) if rows else {}
    for node in rows:
        noticed = any(gpu.health == GpuHealth.UNKNOWN for gpu in inputs.gpus[node.id])
        since = stopped.get(node.id, node.created_at) if noticed else inputs.now - SILENT
        yield _of_node(inputs, node, "no-telemetry", since=since)


def _stopped_at(nodes: Sequence[UUID]) -> dict[UUID, datetime]:
    """Return when the samples of silent nodes stopped: three minutes before their GPUs were marked unknown for it."""
    marked = Gpu.objects.filter(node__in=nodes, health=GpuHealth.UNKNOWN, health_since__isnull=False)
    return {
        node: moment - SILENT
        for node, moment in marked.values_list("node_id").annotate(moment=Max("health_since")).order_by()
    }


def _faults(inputs: Inputs) -> Iterable[Observation]:
    """What nodes report of their GPUs as standing conditions."""
    for condition in inputs.conditions:
        rule = FAULT_RULES.get(condition.type)
        node = inputs.nodes.get(condition.node_id)
        if rule is None or node is None or node.id in inputs.away:
            continue
        text = condition.message or condition.reason
        codes = xids_in(f"{condition.reason} {text}") if condition.type == "GpuXid" else []
        severities = {urgent for code in codes if (urgent := xid_severity(code)) is not None}
        if codes and not severities:
            continue  # all of them are of the kind that is recorded only
        details, named = details_in(text), set(indices_in(text))
        members = tuple(
            Member(gpu.uuid, gpu.index, note=details.get(gpu.index, ""))
            for gpu in inputs.gpus.get(node.id, ())
            if gpu.index in named
        )
        severity = str(min(severities)) if severities else ""  # «page» sorts before «ticket»
        yield _of_node(inputs, node, rule, members=members, severity=severity, since=condition.since, text=text)


def _anomalies(inputs: Inputs, findings: Sequence[detection.Finding]) -> Iterable[Observation]:
    """What the detector found, one observation a node and metric: eight hot GPUs of a host are one thing."""
    by_number = {gpu.number: gpu for gpus in inputs.gpus.values() for gpu in gpus} if findings else {}
    found: dict[tuple[UUID, str], list[Member]] = defaultdict(list)
    for row in findings:
        gpu = by_number.get(row.gpu)
        if gpu is not None and gpu.node_id not in inputs.silent and _counts(row):
            kind = row.kind.name.lower()
            member = Member(gpu.uuid, gpu.index, row.metric, row.observed, row.expected, row.scale, row.z, kind)
            found[gpu.node_id, row.metric].append(member)
    for (node, metric), members in found.items():
        ordered = tuple(sorted(members, key=lambda member: member.index))
        yield _of_node(inputs, inputs.nodes[node], ANOMALY_RULES[metric], members=ordered)


def _counts(row: detection.Finding) -> bool:
    """Tell whether a finding is worth an alert: far outside its band, by enough to matter, on the bad side."""
    if row.metric not in ANOMALY_RULES or row.observed is None or row.z is None:
        return False
    excess = row.observed - row.expected
    if abs(row.z) <= BAND_SCALES or abs(excess) < MIN_EXCESS[row.metric]:
        return False
    return excess > 0 or row.metric not in ONLY_UP


def _of_node(inputs: Inputs, node: NodeRow, rule: str, **more: object) -> Observation:
    gpus = inputs.gpus.get(node.id, [])
    by_samples = rule not in ("node-down", "no-telemetry")
    return Observation(
        rule=rule,
        entity=node.entity,
        gpus=len(gpus),
        node_id=node.id,
        simulated=by_samples and any(gpu.simulated for gpu in gpus),
        **more,  # type: ignore[arg-type]  # fields of Observation, as the callers above give them
    )


def _requests(rows: Iterable[timeseries.RequestMinute]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        counts[row.model] += row.requests
    return counts


def _slow_models(
    rows: Sequence[timeseries.RequestMinute], models: Mapping[str, tuple[UUID, UUID]]
) -> Iterable[Observation]:
    slow: dict[str, dict[UUID, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        slow[row.model][row.node_id] += row.slow_500ms
    for slug, count in _requests(rows).items():
        late = sum(slow[slug].values())
        if slug not in models or count < SLO_REQUESTS or late <= (1 - SLO_SHARE) * count:
            continue
        pk, team = models[slug]
        yield Observation(
            rule="model-slo",
            entity=Entity(EntityKind.MODEL, pk, slug, team, {"model": slug}),
            share=1 - late / count,
            text=f"{late:,} of {count:,} requests in five minutes took longer.",
            node_id=max(slow[slug], key=lambda node: slow[slug][node]),
        )


def health(inputs: Inputs, hot: Mapping[str, str]) -> dict[str, tuple[GpuHealth, str]]:
    """Return the GPUs whose health is another than they are known by. `hot`: members of firing heat alerts, and why."""
    said: dict[str, tuple[GpuHealth, str]] = {uuid: (GpuHealth.HOT, why) for uuid, why in hot.items()}
    for condition in inputs.conditions:
        text = condition.message or condition.reason
        named = set(indices_in(text))
        for gpu in inputs.gpus.get(condition.node_id, ()):
            if not named or gpu.index in named:
                verdict = (Condition.SICK[condition.type], text)
                said[gpu.uuid] = max(said.get(gpu.uuid, verdict), verdict, key=lambda each: HEALTH_RANK[each[0]])
    changed = {}
    for node, gpus in inputs.gpus.items():
        for gpu in gpus:
            verdict = said.get(gpu.uuid) or _quiet(inputs, node, gpu)
            if (gpu.health, gpu.health_reason) != verdict:
                changed[gpu.uuid] = verdict
    return changed


def _quiet(inputs: Inputs, node: UUID, gpu: GpuRow) -> tuple[GpuHealth, str]:
    """Return the health of a GPU of which nothing bad is said."""
    if node in inputs.away or gpu.number not in inputs.heard:
        return GpuHealth.UNKNOWN, "No sample for three minutes."
    return GpuHealth.OK, ""
