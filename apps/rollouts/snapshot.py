"""From rows to the frozen snapshot that the planner decides on; a constant number of queries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from apps.fleet import selectors as fleet
from apps.fleet.models import Condition, DesiredDeployment, Gpu, GpuHealth, Node, NodePhase
from apps.models.models import Artifact
from apps.rollouts.models import Approval, EvidenceSnapshot, Hold, Participant, Rollout, Stage
from apps.rollouts.plans import RUNNING, SILENT, Decision, NodeView, Seen, Snapshot, Spec, StageView, Target, Which
from apps.rollouts.strategy import Plan, parse_plan


@dataclass
class Loaded:
    """A rollout with all that a tick needs of it. `epoch` is the lease under which it was claimed."""

    rollout: Rollout
    epoch: int
    plan: Plan
    stages: list[Stage]
    participants: list[Participant]
    nodes: dict[UUID, Node]
    held: str = ""

    @property
    def stage(self) -> Stage:
        return self.stages[self.rollout.stage_index]


def load(rollout_id: UUID, epoch: int) -> Loaded | None:
    """Read a rollout and what hangs on it, or None when the lease of `epoch` is no longer ours."""
    related = ("model", "version__model", "artifact__version", "baseline", "pool", "strategy", "requested_by")
    rollout = Rollout.objects.select_related(*related).filter(pk=rollout_id, lease_epoch=epoch).first()
    if rollout is None:
        return None
    participants = Participant.objects.filter(rollout=rollout).select_related("previous_artifact__version")
    found = list(participants.order_by("node__name"))
    nodes = fleet.with_state(Node.objects.filter(pk__in=[participant.node_id for participant in found]))
    return Loaded(
        rollout=rollout,
        epoch=epoch,
        plan=parse_plan(rollout.plan),
        stages=list(Stage.objects.filter(rollout=rollout).order_by("index")),
        participants=found,
        nodes={node.pk: node for node in nodes},
        held=_held(rollout),
    )


def _held(rollout: Rollout) -> str:
    hold = Hold.objects.filter(digest=rollout.artifact.digest, lifted_at=None).first()
    return "" if hold is None else f"Its digest is on hold: {hold.reason}"


def view(loaded: Loaded, now: datetime) -> Snapshot:
    """Freeze what was loaded; findings come in later (dataclasses.replace), since what they cost depends on this."""
    rollout = loaded.rollout
    asked = EvidenceSnapshot.objects.filter(stage=loaded.stage, attempt=loaded.stage.attempt).order_by("-created_at")
    snapshot = asked.filter(plan_sha256=rollout.plan_sha256).first()
    return Snapshot(
        version=f"v{rollout.version.number}",
        pool=rollout.pool.slug,
        phase=rollout.phase,
        pause_reason=rollout.pause_reason,
        stage_index=rollout.stage_index,
        stages=tuple(_stage(row, spec) for row, spec in zip(loaded.stages, loaded.plan, strict=True)),
        phase_deadline=rollout.phase_deadline,
        nodes=tuple(_node(loaded, participant, now) for participant in loaded.participants),
        decisions=_decisions(snapshot),
        frozen=_frozen(snapshot),
        held=loaded.held,
    )


def _stage(row: Stage, spec: object) -> StageView:
    selected = None if row.selected is None else frozenset(UUID(node) for node in row.selected)
    return StageView(
        index=row.index,
        spec=spec,  # type: ignore[arg-type]  # a member of Plan
        attempt=row.attempt,
        started_at=row.started_at,
        ready_at=row.ready_at,
        deadline=row.deadline,
        selected=selected,
    )


def _decisions(snapshot: EvidenceSnapshot | None) -> tuple[Decision, ...]:
    if snapshot is None:
        return ()
    rows = Approval.objects.filter(snapshot=snapshot, attempt=snapshot.attempt).select_related("user").order_by("at")
    return tuple(Decision(row.approve, row.user.get_username(), row.reason) for row in rows)


def _frozen(snapshot: EvidenceSnapshot | None) -> tuple[tuple[str, str], ...]:
    if snapshot is None:
        return ()
    return tuple((row["metric"], row["verdict"]) for row in snapshot.content["findings"] if row["required"])


def _node(loaded: Loaded, participant: Participant, now: datetime) -> NodeView:
    node = loaded.nodes[participant.node_id]
    silent = fleet.overdue(node, now)
    previous = participant.previous_artifact
    return NodeView(
        id=node.pk,
        name=node.name,
        zone=node.zone,
        reachable=node.phase in Node.MAY_TALK and not silent,
        takes_work=node.phase in Node.TAKES_WORK,
        accepted_newest=fleet.accepted_newest(node),
        has_previous=previous is not None,
        desired=_desired(loaded, node, previous),
        candidate=_seen(node, loaded.rollout.artifact),
        previous=_seen(node, previous),
        sick=_sick(node),
        silent=SILENT if silent else "",
        drains=node.phase == NodePhase.DRAINING,
        excluded=participant.excluded_reason,
    )


def _sick(node: Node) -> str:
    """Return why the node's measurements can't count, or nothing."""
    for condition in node.conditions.all():
        if condition.type in Condition.SICK and condition.status == "true":
            return f"It reports {condition.type}" + (f": {condition.reason}." if condition.reason else ".")
    ill = [gpu for gpu in node.gpus.all() if gpu.health in Gpu.SICK]
    if ill:
        worst = ill[0]
        others = f" and {len(ill) - 1} more" if len(ill) > 1 else ""
        reason = f": {worst.health_reason}" if worst.health_reason else "."
        return f"GPU {worst.index}{others}: {GpuHealth(worst.health).label}{reason}"
    if node.phase not in Node.TAKES_WORK:
        return f"It is {NodePhase(node.phase).label.lower()}."
    return ""


def _desired(loaded: Loaded, node: Node, previous: Artifact | None) -> Target:
    rows = [row for row in node.desired.all() if row.model_id == loaded.rollout.model_id]
    ours = next((row for row in rows if row.rollout_id == loaded.rollout.pk), None)
    specs = tuple(
        Spec(_which(loaded, row, previous), row.role, row.weight, row.mirror_percent)
        for row in sorted(rows, key=lambda row: row.role)
    )
    return Target(specs, ours.stage if ours else None, ours.attempt if ours else None)


def _which(loaded: Loaded, row: DesiredDeployment, previous: Artifact | None) -> Which:
    if row.artifact_id == loaded.rollout.artifact_id:
        return Which.CANDIDATE
    return Which.PREVIOUS if previous is not None and row.artifact_id == previous.pk else Which.OTHER


def _seen(node: Node, artifact: Artifact | None) -> Seen:
    """Return what the node says of an artifact, whatever deployment it runs under: the best of several."""
    if artifact is None:
        return Seen()
    reports = [report for report in node.reported.all() if report.digest == artifact.digest]
    if not reports:
        return Seen()
    best = max(reports, key=lambda report: (report.state == RUNNING, report.weight_in_force))
    return Seen(best.state, best.weight_in_force, best.reason)
