"""Every read of the fleet: lists scoped by team, and what a node's desired, signed and reported state mean together.

Functions on a single node work on what `nodes()` prefetched and run no queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.contrib.auth.models import AnonymousUser
from django.db.models import Count, ExpressionWrapper, F, FloatField, Prefetch, Q, QuerySet
from django.db.models.fields import DateTimeField
from django.db.models.functions import Cast

from apps.access.models import User
from apps.access.selectors import for_user
from apps.fleet.models import (
    Assignment,
    DesiredDeployment,
    Gpu,
    JoinToken,
    Node,
    NodePhase,
    Pool,
    Refusal,
    ReportedDeployment,
)
from apps.lib.errors import Forbidden, NotFound
from apps.models.models import Artifact
from protocol.messages import DeploymentState

OVERDUE_POLLS = 3
REFUSALS_SHOWN = 20


def pools(user: User | AnonymousUser) -> QuerySet[Pool]:
    """The pools that the user may see, by name, with `node_count`."""
    return for_user(Pool.objects.all(), user).annotate(node_count=Count("nodes", distinct=True)).order_by("slug")


def nodes(user: User | AnonymousUser) -> QuerySet[Node]:
    """The nodes that the user may see, by name, with all that the functions below need: a constant count of queries."""
    return with_state(for_user(Node.objects.all(), user))


def get_node(user: User | AnonymousUser, name: str) -> Node:
    """Return a node that the user may see, as `nodes` would. Raises NotFound."""
    node = nodes(user).prefetch_related("gpus").filter(name=name).first()
    if node is None:
        raise NotFound("node_not_found", f"There is no node «{name}» in your teams.")
    return node


def get_gpu(user: User | AnonymousUser, name: str, uuid: str) -> Gpu:
    """Return a GPU of a node that the user may see, with its node. Raises NotFound."""
    mine = for_user(Gpu.objects.filter(node__name=name, uuid=uuid), user, field="node__team_id")
    gpu = mine.select_related("node").first()
    if gpu is None:
        raise NotFound("gpu_not_found", f"There is no GPU «{uuid}» of a node «{name}» in your teams.")
    return gpu


def get_pool(user: User | AnonymousUser, slug: str) -> Pool:
    """Return a pool that the user may see. Raises NotFound."""
    pool = for_user(Pool.objects.filter(slug=slug), user).first()
    if pool is None:
        raise NotFound("pool_not_found", f"There is no pool «{slug}» in your teams.")
    return pool


def with_state(rows: QuerySet[Node]) -> QuerySet[Node]:
    """Add pool, assignment, desired, reported, conditions, GPUs and the newest refusals to a query for nodes."""
    desired = DesiredDeployment.objects.select_related("model", "version", "artifact").defer("artifact__manifest")
    refusals = Refusal.objects.order_by("-at")[:REFUSALS_SHOWN]
    return (
        rows.select_related("pool", "assignment")
        .defer("assignment__statement", "assignment__path", "assignment__envelope")
        .prefetch_related(
            Prefetch("desired", desired.order_by("model__slug", "role")),
            "reported",
            "conditions",
            Prefetch("gpus", Gpu.objects.order_by("index")),
            Prefetch("refusals", refusals, to_attr="newest_refusals"),  # Django slices only into an attribute
        )
        .order_by("name")
    )


def join_tokens(user: User | AnonymousUser, now: datetime) -> QuerySet[JoinToken]:
    """Join tokens that may still be used, newest first."""
    unused = for_user(JoinToken.objects.filter(used_at__isnull=True, expires_at__gt=now), user)
    return unused.select_related("pool", "created_by").order_by("-created_at")


@dataclass(frozen=True)
class DeploymentStatus:
    """How far a node has come with one desired deployment.

    `serving` is the only success: the running digest is the desired one (a warm-up inference went before it).
    `routed` says that the gateway's weight is the desired one too.
    """

    state: DeploymentState
    serving: bool
    routed: bool
    reason_code: str = ""
    reason: str = ""
    warmup_ms: float | None = None
    weight_in_force: int = 0
    since: datetime | None = None


def deployment_status(node: Node, deployment: DesiredDeployment) -> DeploymentStatus:
    """Hold a desired deployment against the node's last report of it. A report of another digest counts for nothing."""
    report = _reports(node).get(deployment.pk)
    if report is None or report.digest != deployment.artifact.digest:
        return DeploymentStatus(DeploymentState.ASSIGNED, serving=False, routed=False)
    serving = report.state == DeploymentState.RUNNING
    return DeploymentStatus(
        state=DeploymentState(report.state),
        serving=serving,
        routed=serving and report.weight_in_force == deployment.weight,
        reason_code=report.reason_code,
        reason=report.reason,
        warmup_ms=report.warmup_ms,
        weight_in_force=report.weight_in_force,
        since=report.since,
    )


def in_sync(node: Node) -> bool:
    """Tell whether the node accepted its newest assignment and routes exactly what it says, and nothing else."""
    if not accepted_newest(node):
        return False
    if node.phase == NodePhase.DRAINING:
        return not any(report.weight_in_force for report in node.reported.all())
    wanted = list(node.desired.all())
    ids = {deployment.pk for deployment in wanted}
    strays = any(report.weight_in_force for report in node.reported.all() if report.deployment_id not in ids)
    return not strays and all(deployment_status(node, deployment).routed for deployment in wanted)


def in_sync_for(node: Node, model_id: UUID) -> bool:
    """As `in_sync`, for one model: its deployments are accepted, running and routed as desired.

    A deployment that is no longer desired can't be told apart by model; the gateway's weights of a model sum to 100,
    so a desired set that is routed in full leaves none for it.
    """
    wanted = [deployment for deployment in node.desired.all() if deployment.model_id == model_id]
    return accepted_newest(node) and all(deployment_status(node, deployment).routed for deployment in wanted)


def accepted_newest(node: Node) -> bool:
    """Tell whether everything desired is signed and the node reports having accepted that very assignment."""
    assignment = assignment_of(node)
    if assignment is None:
        return node.desired_generation == 0
    return node.desired_generation == node.compiled_generation and (
        (node.observed_epoch, node.observed_sequence) == (assignment.director_epoch, assignment.sequence)
    )


def assignment_of(node: Node) -> Assignment | None:
    """The node's signed assignment, None before its first."""
    return getattr(node, "assignment", None)


def overdue(node: Node, now: datetime) -> bool:
    """Tell whether the node has been silent for three of its pool's poll intervals (or never came)."""
    if node.phase not in Node.MAY_TALK:
        return False
    since = node.last_seen_at or node.created_at
    return now - since > timedelta(seconds=OVERDUE_POLLS * node.pool.poll_interval_s)


def refusals(node: Node) -> list[Refusal]:
    """The newest things that the node would not accept, newest first, at most 20."""
    newest: list[Refusal] = node.newest_refusals  # type: ignore[attr-defined]  # with_state() prefetched it
    return newest


def condition(node: Node, kind: str) -> str:
    """Return the status of a condition: true, false, or unknown (also when the node never reported it)."""
    return next((row.status for row in node.conditions.all() if row.type == kind), "unknown")


def assigned_artifact(node: Node, digest: str) -> Artifact:
    """Return an artifact that the node's assignment names, with its blob.

    Raises Forbidden(not_assigned), in the same words whether or not the artifact exists.
    """
    if not Assignment.objects.filter(pk=node.pk, digests__contains=[digest]).exists():
        raise Forbidden("not_assigned", f"The artifact {digest[:12]}… is not assigned to node {node}.")
    return Artifact.objects.select_related("blob").defer("blob__tensors").get(digest=digest)


def _reports(node: Node) -> dict[UUID, ReportedDeployment]:
    return {report.deployment_id: report for report in node.reported.all()}


@dataclass(frozen=True)
class FleetSummary:
    """Counts for the top of the fleet page; `overdue` counts nodes that should talk and don't."""

    total: int
    active: int
    pending: int
    cordoned: int
    draining: int
    locked: int  # quarantined or banned
    overdue: int
    failed_deployments: int


def fleet_summary(user: User | AnonymousUser, now: datetime) -> FleetSummary:
    """Count the user's nodes by what needs attention; two queries."""
    rows = for_user(Node.objects.all(), user)
    phase = {key: Count("pk", filter=Q(phase__in=kinds)) for key, kinds in _SUMMARY_PHASES.items()}
    silent_s = Cast(OVERDUE_POLLS * F("pool__poll_interval_s"), FloatField())
    limit = ExpressionWrapper(now - silent_s * timedelta(seconds=1), output_field=DateTimeField())
    late = Q(phase__in=Node.MAY_TALK) & (Q(last_seen_at__lt=limit) | Q(last_seen_at__isnull=True, created_at__lt=limit))
    counts = rows.aggregate(total=Count("pk"), overdue=Count("pk", filter=late), **phase)
    failed = ReportedDeployment.objects.filter(node__in=rows, state=DeploymentState.FAILED).count()
    return FleetSummary(failed_deployments=failed, **counts)


_SUMMARY_PHASES = {
    "active": (NodePhase.ACCEPTED, NodePhase.ACTIVE),
    "pending": (NodePhase.PENDING,),
    "cordoned": (NodePhase.CORDONED,),
    "draining": (NodePhase.DRAINING,),
    "locked": (NodePhase.QUARANTINED, NodePhase.BANNED),
}
