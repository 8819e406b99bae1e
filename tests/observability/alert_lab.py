"""What tests of alerts are made of: a snapshot by hand, and a small watched fleet whose inputs a test sets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from apps.fleet.models import Condition, Gpu, Node, NodePhase
from apps.observability import alerting, detection, samples, timeseries
from apps.observability.alert_models import Alert
from apps.observability.alert_plans import AlertView, Entity, Member, Observation, RuleView, Snapshot
from apps.observability.alert_rules import DEFAULTS
from apps.observability.detection import Finding, Findings, Kind
from tests.fleet import builders

NOW = datetime(2030, 1, 31, 3, 4, tzinfo=UTC)
TEAM = UUID(int=1)
NODE = Entity("node", UUID(int=2), "node-2", TEAM, {"node": "node-2", "zone": "zone-b"})
FOR_S = 300.0
RULES = {
    row.slug: RuleView(
        row.slug,
        row.kind,
        row.metric,
        row.severity,
        FOR_S if row.for_s is None else row.for_s,
        row.keep_firing_s,
    )
    for row in DEFAULTS
}


def hot(*indices: int, gpus: int = 8, excess: float = 16.0, rule: str = "gpu-temperature") -> Observation:
    """GPUs of node-2 above what was expected of them."""
    members = tuple(
        Member(f"GPU-{index}", index, RULES[rule].metric, 62.0 + excess, 62.0, 0.75, excess / 1.4, "trend_break")
        for index in indices
    )
    return Observation(rule, NODE, members, gpus=gpus, node_id=NODE.id)


def view(state: str, rule: str = "gpu-temperature", **changes: Any) -> AlertView:
    """An open alert of node-2 that has been pending, and seen to hold, since now."""
    fields: dict[str, Any] = {
        "id": uuid4(),
        "rule": rule,
        "entity_id": NODE.id,
        "state": state,
        "severity": "ticket",
        "pending_at": NOW,
        "bad_at": NOW,
        "firing_at": NOW if state == "firing" else None,
        "node_id": NODE.id,
    }
    return AlertView(**(fields | changes))


def snapshot(alerts: Iterable[AlertView] = (), observations: Iterable[Observation] = (), **changes: Any) -> Snapshot:
    fields: dict[str, Any] = {"rules": RULES, "present": frozenset({NODE.id})}
    return Snapshot(alerts=tuple(alerts), observations=tuple(observations), **(fields | changes))


@dataclass
class WatchedFleet:
    """Nodes with eight simulated GPUs each; what the detector finds and which samples come is set by hand."""

    world: builders.World
    now: datetime
    findings: dict[tuple[int, str], tuple[float, float]] = field(default_factory=dict)  # (number, metric) → seen, usual
    judged_s_ago: float = 90.0  # the newest minute that the detector has judged
    unheard: set[int] = field(default_factory=set)  # numbers of GPUs whose samples stopped

    def add_node(self, name: str, gpus: int = 8) -> Node:
        node, _ = builders.enrol(self.world, name, self.now)
        node.phase, node.zone = NodePhase.ACTIVE, "zone-b"
        node.last_seen_at, node.created_at = self.now, self.now - timedelta(hours=1)
        node.save()
        for index in range(gpus):
            Gpu.objects.create(
                uuid=f"GPU-{name}-{index}", node=node, index=index, name="H100", memory_bytes=80 << 30, simulated=True
            )
        return node

    def heat(self, node: Node, *indices: int, excess: float = 16.0, metric: str = "temperature_c") -> None:
        """Have the detector find GPUs `excess` above their usual."""
        usual = 410.0 if metric == "power_w" else 62.0
        for gpu in node.gpus.filter(index__in=indices or range(8)):
            self.findings[gpu.number, metric] = (usual + excess, usual)

    def cool(self) -> None:
        self.findings.clear()

    def report(self, node: Node, kind: str, message: str) -> None:
        """Have a node report a standing condition."""
        Condition.objects.update_or_create(
            node=node, type=kind, defaults={"status": "true", "message": message, "since": self.now}
        )

    def tick(self, seconds: float = 5.0, *, polls: bool = True) -> int:
        """Let time pass, have every node poll, evaluate."""
        self.now += timedelta(seconds=seconds)
        if polls:
            Node.objects.filter(phase__in=Node.MAY_TALK, last_seen_at__isnull=False).update(last_seen_at=self.now)
        return alerting.evaluate(self.now)

    def run(self, seconds: float, step: float = 30.0, *, polls: bool = True) -> None:
        for _ in range(round(seconds / step)):
            self.tick(step, polls=polls)

    def install(self, monkeypatch: Any) -> None:
        """Stand in for the detector and the samples at the edge where alerts read them."""
        monkeypatch.setattr(
            detection,
            "findings",
            lambda now: Findings(now - timedelta(seconds=self.judged_s_ago), self.rows(), set(), set()),
        )
        monkeypatch.setattr(samples, "gpus_heard", lambda since: self.heard())
        monkeypatch.setattr(samples, "latest", lambda gpus: {})
        monkeypatch.setattr(timeseries, "request_minutes", lambda *asked: [])

    def rows(self) -> list[Finding]:
        return [
            Finding(number, metric, self.now, seen, usual, 0.75, (seen - usual) / 1.4, Kind.TREND_BREAK)
            for (number, metric), (seen, usual) in self.findings.items()
            if number not in self.unheard
        ]

    def heard(self) -> set[int]:
        return set(Gpu.objects.values_list("number", flat=True)) - self.unheard

    def alerts(self, **filters: Any) -> list[Alert]:
        """The alerts there are, the heartbeat left out."""
        return list(Alert.objects.exclude(rule="heartbeat").filter(**filters).order_by("pending_at", "rule"))
