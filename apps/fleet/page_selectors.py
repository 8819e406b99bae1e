"""What the console's pages read about the fleet: lists, a node, where a model runs; the grid is in grid.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from apps.access.models import User
from apps.access.selectors import for_user
from apps.fleet.models import DesiredDeployment, Gpu, Node, NodePhase, ReportedDeployment
from apps.lib.errors import NotFound
from apps.lib.templatetags.farrier import size
from protocol.messages import DeploymentState


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
    # subqueries, not joins: the page's fifty rows are counted, not the fleet's product of them all
    of_node = {"node": OuterRef("pk")}
    running = ReportedDeployment.objects.filter(**of_node, state=DeploymentState.RUNNING)
    return rows.annotate(
        served=_count(running),
        wanted=_count(DesiredDeployment.objects.filter(**of_node)),
        gpu_count=_count(Gpu.objects.filter(**of_node)),
    )


def _count(rows: QuerySet[Any]) -> Coalesce:
    counted = rows.order_by().values("node").annotate(count=Count("*")).values("count")
    return Coalesce(Subquery(counted), 0)


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
