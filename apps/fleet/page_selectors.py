"""What the console's pages read about the fleet: the grid of nodes and GPUs, lists, where a model runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, Q, QuerySet

from apps.access.models import User
from apps.access.selectors import for_user
from apps.fleet.models import Condition, DesiredDeployment, Gpu, Node, NodePhase, ReportedDeployment
from apps.lib.errors import NotFound
from apps.lib.templatetags.farrier import size
from protocol.messages import DeploymentState

OVERDUE_POLLS = 3

# What a cell of the grid says: letter, colour class, word. The first that holds is shown.
HEALTH: dict[str, tuple[str, str, str]] = {
    "banned": ("B", "off", "banned"),
    "quarantined": ("Q", "off", "quarantined"),
    "rejected": ("R", "off", "rejected"),
    "lost": ("L", "off", "GPU lost"),
    "xid": ("X", "off", "Xid error"),
    "away": ("?", "away", "not heard from"),
    "hot": ("H", "ill", "hot"),
    "failed": ("f", "ill", "a deployment failed"),
    "pending": ("p", "idle", "waits to be accepted"),
    "cordoned": ("c", "warned", "cordoned"),
    "draining": ("d", "warned", "draining"),
    "throttled": ("t", "warned", "throttled"),
    "serving": ("", "", "serving"),
    "idle": ("·", "idle", "idle"),
}


@dataclass(frozen=True)
class Cell:
    """One GPU, or the host itself where it has none."""

    node: str
    health: str
    gpu: int | None
    simulated: bool

    @property
    def letter(self) -> str:
        return HEALTH[self.health][0]

    @property
    def kind(self) -> str:
        return HEALTH[self.health][1]

    @property
    def word(self) -> str:
        return HEALTH[self.health][2]


@dataclass(frozen=True)
class Zone:
    name: str
    nodes: int
    cells: tuple[Cell, ...]

    @property
    def gpus(self) -> int:
        return sum(cell.gpu is not None for cell in self.cells)


@dataclass(frozen=True)
class Grid:
    """The fleet by zone, and how many nodes are in each health."""

    zones: tuple[Zone, ...]
    counts: Mapping[str, int]
    nodes: int
    gpus: int

    @property
    def legend(self) -> list[tuple[str, str, str, int]]:
        """Return (letter, colour class, word, nodes) of what the grid shows, worst first."""
        return [(*HEALTH[key], self.counts[key]) for key in HEALTH if self.counts.get(key)]

    @property
    def well(self) -> int:
        return self.counts.get("serving", 0) + self.counts.get("idle", 0)


def grid(user: User, now: datetime) -> Grid:
    """Return the user's whole fleet as cells; four queries whatever its size."""
    rows = list(
        for_user(Node.objects.order_by("zone", "name"), user).values(
            "id", "name", "zone", "phase", "last_seen_at", "created_at", "pool__poll_interval_s"
        )
    )
    ill, failed, busy = _ill(user), _failed(user), _busy(user)
    gpus: dict[UUID, list[tuple[int | None, bool]]] = defaultdict(list)
    for node_id, index, simulated in for_user(Gpu.objects.order_by("index"), user, field="node__team_id").values_list(
        "node_id", "index", "simulated"
    ):
        gpus[node_id].append((index, simulated))
    host: list[tuple[int | None, bool]] = [(None, False)]
    zones: dict[str, list[Cell]] = defaultdict(list)
    hosts: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        health = _health(row, now, ill.get(row["id"]), row["id"] in failed, row["id"] in busy)
        counts[health] += 1
        hosts[row["zone"]] += 1
        for gpu, simulated in gpus.get(row["id"], host):
            zones[row["zone"]].append(Cell(row["name"], health, gpu, simulated))
    parts = tuple(Zone(zone, hosts[zone], tuple(cells)) for zone, cells in zones.items())
    return Grid(parts, dict(counts), len(rows), sum(len(found) for found in gpus.values()))


def _health(row: Mapping[str, Any], now: datetime, ill: str | None, failed: bool, busy: bool) -> str:
    phase = row["phase"]
    if phase in ("banned", "quarantined", "rejected", "pending"):
        return str(phase)
    if ill in ("lost", "xid"):
        return ill
    silent = now - (row["last_seen_at"] or row["created_at"])
    if silent > timedelta(seconds=OVERDUE_POLLS * row["pool__poll_interval_s"]):
        return "away"
    if ill == "hot" or failed:
        return ill or "failed"
    if phase in ("cordoned", "draining"):
        return str(phase)
    return ill or ("serving" if busy else "idle")


def _ill(user: User) -> dict[UUID, str]:
    rows = for_user(Condition.objects.filter(type__in=Condition.SICK, status="true"), user, field="node__team_id")
    found: dict[UUID, str] = {}
    for node_id, kind in rows.values_list("node_id", "type"):
        health = str(Condition.SICK[kind])
        worst = min(health, found.get(node_id, health), key=list(HEALTH).index)
        found[node_id] = worst
    return found


def _failed(user: User) -> set[UUID]:
    """Nodes on which something still desired has failed."""
    wanted = DesiredDeployment.objects.values("pk")
    rows = ReportedDeployment.objects.filter(state=DeploymentState.FAILED, deployment_id__in=wanted)
    return set(for_user(rows, user, field="node__team_id").values_list("node_id", flat=True))


def _busy(user: User) -> set[UUID]:
    rows = ReportedDeployment.objects.filter(state=DeploymentState.RUNNING)
    return set(for_user(rows, user, field="node__team_id").values_list("node_id", flat=True))


def node_list(user: User, *, search: str = "", phase: str = "", zone: str = "", pool: str = "") -> QuerySet[Node]:
    """Return the user's nodes, narrowed, with `served` (deployments that run) and `wanted` (that should)."""
    rows = for_user(Node.objects.select_related("pool"), user)
    if search:
        rows = rows.filter(Q(name__icontains=search) | Q(hostname__icontains=search))
    if phase:
        rows = rows.filter(phase=phase)
    if zone:
        rows = rows.filter(zone=zone)
    if pool:
        rows = rows.filter(pool__slug=pool)
    running = Q(reported__state=DeploymentState.RUNNING)
    return rows.annotate(
        served=Count("reported", filter=running, distinct=True),
        wanted=Count("desired", distinct=True),
        gpu_count=Count("gpus", distinct=True),
    )


def choices(user: User) -> dict[str, list[str]]:
    """Return the zones and pools that the user's nodes are in, for filters."""
    rows = for_user(Node.objects.order_by(), user)
    return {
        "zones": sorted(rows.values_list("zone", flat=True).distinct()),
        "pools": sorted(rows.values_list("pool__slug", flat=True).distinct()),
    }


def get_node(user: User, name: str) -> Node:
    """Return one of the user's nodes. Raises NotFound."""
    found = for_user(Node.objects.select_related("pool", "team", "assignment"), user).filter(name=name).first()
    if found is None:
        raise NotFound("node_not_found", f"There is no node «{name}» in your teams; the list is under Fleet.")
    return found


@dataclass(frozen=True)
class Row:
    """A desired deployment beside the node's last report of it."""

    desired: DesiredDeployment
    reported: ReportedDeployment | None

    @property
    def state(self) -> str:
        if self.reported is None or self.reported.digest != self.desired.artifact.digest:
            return "unreported"
        return self.reported.state


def deployments(node: Node) -> tuple[list[Row], list[ReportedDeployment]]:
    """Return what the node should serve beside what it says, and what it reports beyond that."""
    reported = {row.deployment_id: row for row in node.reported.order_by("-reported_at")}
    desired = node.desired.select_related("model", "version", "artifact").defer("artifact__manifest")
    rows = [Row(want, reported.pop(want.pk, None)) for want in desired.order_by("model__slug", "role")]
    return rows, list(reported.values())


def hardware(node: Node) -> list[tuple[str, str]]:
    """Return the plain facts that the node told of its host, units said."""
    facts = []
    for name, value in sorted(node.hardware.items()):
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            continue
        if name.endswith("_bytes"):
            facts.append((name.removesuffix("_bytes").replace("_", " "), size(int(value))))
        else:
            facts.append((name.replace("_", " "), str(value)))
    return facts


def where_runs(user: User, model: UUID) -> list[tuple[DesiredDeployment, str]]:
    """Return a model's desired deployments in the user's sight with the state each node reports."""
    wanted = for_user(DesiredDeployment.objects.filter(model_id=model), user)
    rows = list(
        wanted.select_related("node", "version", "artifact")
        .defer("artifact__manifest")
        .order_by("-version__number", "node__zone", "node__name")
    )
    reports = {
        row.deployment_id: row
        for row in ReportedDeployment.objects.filter(deployment_id__in=[want.pk for want in rows])
    }
    return [(want, Row(want, reports.get(want.pk)).state) for want in rows]


def pending_nodes(user: User) -> QuerySet[Node]:
    """Return nodes that wait to be accepted."""
    return for_user(Node.objects.filter(phase=NodePhase.PENDING).select_related("pool"), user).order_by("created_at")
