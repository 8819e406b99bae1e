"""What the evidence page of a rollout shows, gathered into frozen values that its template only has to print."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from apps.access.models import User
from apps.access.selectors import for_user
from apps.fleet.models import DesiredDeployment, ReportedDeployment
from apps.lib.errors import NotFound
from apps.models import page_selectors as registry
from apps.models.models import Artifact
from apps.rollouts import figures
from apps.rollouts.models import (
    Approval,
    Evidence,
    Hold,
    Participant,
    PauseReason,
    Phase,
    Rollout,
    Stage,
    StageState,
    Verdict,
)

METRICS = {
    "similarity": "Output similarity",
    "errors": "Error rate",
    "slo": "Within the SLO",
    "slo_share": "Within the SLO",
    "slo_red_line": "Within the SLO, red line",
    "p99": "p99 latency",
    "auc": "AUC",
    "entropy": "Entropy",
    "p50": "Median latency",
}


@dataclass(frozen=True)
class Seen:
    """One line of «What was seen»."""

    row: Evidence
    name: str
    interval: figures.Interval | None
    spoken: str  # the interval in words, for those who don't see it

    @property
    def tone(self) -> str:
        return {"successful": "ok", "failed": "bad"}.get(self.row.verdict, "warn")

    @property
    def word(self) -> str:
        return Verdict(self.row.verdict).label.lower()

    @property
    def say_why(self) -> bool:
        """Whether the sentence adds to what the row shows already."""
        return bool(self.row.sentence) and self.row.verdict in (Verdict.FAILED, Verdict.INCONCLUSIVE, Verdict.ERROR)


@dataclass(frozen=True)
class Step:
    """One step of the stepper."""

    stage: Stage
    title: str
    detail: str
    kind: str  # css: done, now, lost or nothing
    icon: str
    shown: bool
    has_evidence: bool


@dataclass(frozen=True)
class Share:
    """What part of a node's requests a version answers."""

    number: int
    weight: int


@dataclass(frozen=True)
class Place:
    """A node that takes part: how far it is with the candidate, and which versions answer there now."""

    participant: Participant
    state: str
    reason: str
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class Policy:
    """A rule that this rollout keeps or breaks."""

    name: str
    holds: bool


@dataclass(frozen=True)
class EvidencePage:
    rollout: Rollout
    steps: Sequence[Step]
    shown: Stage | None
    seen: Sequence[Seen]
    similarity: Seen | None
    histogram: figures.Histogram | None
    worst: Sequence[dict[str, Any]]
    diff: Sequence[registry.PartDiff]
    places: Sequence[Place]
    approvals: Sequence[Approval]
    holds: Sequence[Hold]
    expires: datetime | None
    size: int
    size_before: int | None
    waiting: Stage | None

    @property
    def title(self) -> str:
        """The stage whose evidence is shown."""
        return title_of(self.shown) if self.shown else ""

    @property
    def updated_at(self) -> datetime | None:
        return max((line.row.updated_at for line in self.seen), default=None)

    @property
    def needed(self) -> int:
        """How many approvals the current stage takes."""
        return int(self.waiting.params.get("approvers", 1)) if self.waiting else 1

    @property
    def given(self) -> int:
        current = self.waiting
        return sum(row.approve and current is not None and row.stage_id == current.pk for row in self.approvals)

    @property
    def following(self) -> Stage | None:
        """The stage after the current one."""
        index = self.rollout.stage_index + 1
        return next((step.stage for step in self.steps if step.stage.index == index), None)

    @property
    def approve_label(self) -> str:
        if self.rollout.pause_reason == PauseReason.INCONCLUSIVE:
            return "Go on all the same"
        return f"Approve to {title_of(self.following).lower()}" if self.following else "Approve"

    @property
    def where(self) -> str:
        """How many nodes serve the candidate, and how many are left out."""
        serving = f"{self.ready} of {len(self.places)} serve v{self.rollout.version.number}"
        return f"{serving}, {self.excluded} excluded" if self.excluded else serving

    @property
    def decider(self) -> str:
        """Who or what ended it."""
        if self.rollout.phase == Phase.ROLLED_BACK:
            rejected = next((row for row in self.approvals if not row.approve), None)
            return str(rejected.user) if rejected else "the evidence, by itself"
        if self.rollout.phase == Phase.COMPLETED:
            return ", ".join(str(row.user) for row in self.approvals) or "its plan, which asks nobody"
        return "a person" if self.rollout.phase == Phase.ABORTED else "a newer rollout"

    @property
    def effect(self) -> str:
        """What approving does, and what a rollback would cost."""
        count = len(self.places)
        where = f"{count} node{'' if count == 1 else 's'}"
        back = f" A rollback to v{self.rollout.baseline.number} needs no download." if self.rollout.baseline else ""
        return f"Approving moves {where} of pool {self.rollout.pool} towards v{self.rollout.version.number}.{back}"

    @property
    def next_sentence(self) -> str:
        """What happens by itself from here, while nothing waits for a person."""
        return _next_sentence(self)

    @property
    def policies(self) -> Sequence[Policy]:
        """The rules of every rollout, and whether this one keeps them."""
        version = self.rollout.version
        complete = all((version.model_hash, version.data_hash, version.env_hash, version.build_hash))
        held = any(hold.lifted_at is None for hold in self.holds)
        asks = any(step.stage.kind == "approval" for step in self.steps)
        return (
            Policy("lineage complete" if complete else "a part of the lineage is missing", complete),
            Policy("signed by a release key", bool(self.rollout.artifact.signed_by)),
            Policy("the digest is on hold" if held else "no hold on the digest", not held),
            Policy("another person approves" if asks else "no approval in this plan", asks),
        )

    @property
    def ready(self) -> int:
        return sum(place.state == "running" for place in self.places)

    @property
    def excluded(self) -> int:
        return sum(bool(place.participant.excluded_reason) for place in self.places)


def get_rollout(user: User, pk: Any) -> Rollout:
    """Return one of the user's rollouts with what its page names. Raises NotFound."""
    rows = Rollout.objects.select_related(
        "model", "version", "baseline", "pool", "strategy", "requested_by", "team", "artifact__blob"
    ).defer("artifact__manifest", "artifact__blob__leaf_table", "artifact__blob__tensors")
    found = for_user(rows, user).filter(pk=pk).first()
    if found is None:
        raise NotFound("rollout_not_found", "There is no such rollout in your teams; the list is under Rollouts.")
    return found


def evidence_page(rollout: Rollout, wanted_stage: str | None, now: datetime) -> EvidencePage:
    """Gather the page of `rollout`; `wanted_stage` is the index of an earlier stage whose evidence to show."""
    stages = list(rollout.stages.order_by("index"))
    evidence = [
        row
        for row in Evidence.objects.filter(stage__rollout=rollout).select_related("stage").order_by("id")
        if row.attempt == row.stage.attempt
    ]
    shown = _shown_stage(rollout, stages, evidence, wanted_stage)
    seen = [_seen(row) for row in evidence if shown is not None and row.stage_id == shown.pk]
    seen.sort(key=lambda line: (not line.row.required, _order(line.row.metric)))
    similarity = next((line for line in seen if line.row.metric == "similarity"), None)
    detail = similarity.row.detail if similarity else {}
    approvals = list(Approval.objects.filter(rollout=rollout).select_related("user", "stage").order_by("at"))
    waiting = next((stage for stage in stages if stage.index == rollout.stage_index), None)
    return EvidencePage(
        rollout=rollout,
        steps=[_step(rollout, stage, evidence, shown, approvals, now) for stage in stages],
        shown=shown,
        seen=seen,
        similarity=similarity,
        histogram=figures.histogram(detail.get("histogram"), similarity.row.margin if similarity else None),
        worst=detail.get("worst", [])[:6],
        diff=registry.lineage_diff(rollout.baseline, rollout.version) if rollout.baseline else [],
        places=_places(rollout),
        approvals=approvals,
        holds=list(Hold.objects.filter(digest=rollout.artifact.digest).select_related("lifted_by")),
        expires=waiting.deadline if waiting and rollout.phase == Phase.PAUSED else None,
        size=rollout.artifact.blob.total_bytes,
        size_before=_size_of(rollout),
        waiting=waiting,
    )


def _next_sentence(page: EvidencePage) -> str:
    rollout = page.rollout
    if rollout.phase == Phase.PAUSED:
        return "A person paused it or nodes are missing. It goes on when it is resumed; automatic rollback stays armed."
    if rollout.phase in (Phase.ROLLING_BACK, Phase.ABORTING):
        return "Every node goes back to what it served before. It is done when each reachable node reports it."
    if rollout.phase == Phase.PROMOTING:
        return "The candidate becomes what every node serves; then the alias champion moves."
    then = f" Then: {title_of(page.following).lower()}." if page.following else ""
    return f"The stage passes when every required metric lies on the good side of its margin.{then}"


def _order(metric: str) -> int:
    return list(METRICS).index(metric) if metric in METRICS else len(METRICS)


def _shown_stage(
    rollout: Rollout, stages: Sequence[Stage], evidence: Sequence[Evidence], wanted: str | None
) -> Stage | None:
    """The wanted stage, else the last one reached that has evidence."""
    with_evidence = {row.stage_id for row in evidence}
    if wanted and wanted.isdigit():
        chosen = next((stage for stage in stages if stage.index == int(wanted)), None)
        if chosen is not None and chosen.pk in with_evidence:
            return chosen
    reached = [stage for stage in stages if stage.pk in with_evidence and stage.index <= rollout.stage_index]
    return reached[-1] if reached else None


def _seen(row: Evidence) -> Seen:
    drawn = figures.interval(row.low, row.high, row.estimate, row.margin, row.better)
    return Seen(row, METRICS.get(row.metric, row.metric.replace("_", " ")), drawn, _spoken(row))


def _spoken(row: Evidence) -> str:
    if row.low is None or row.high is None:
        return ""
    bound = (
        "" if row.margin is None else f", must be {'at least' if row.better == 'higher' else 'at most'} {row.margin:g}"
    )
    return f"{row.low:.4g} to {row.high:.4g}{bound}"


def _step(
    rollout: Rollout,
    stage: Stage,
    evidence: Sequence[Evidence],
    shown: Stage | None,
    approvals: Sequence[Approval],
    now: datetime,
) -> Step:
    rows = [row for row in evidence if row.stage_id == stage.pk]
    current = stage.index == rollout.stage_index
    over = rollout.phase in Rollout.TERMINAL
    if stage.state == StageState.PASSED or (over and rollout.phase == Phase.COMPLETED):
        kind, icon = "done", "check"
    elif stage.state == StageState.FAILED:
        kind, icon = "lost", "cross"
    elif current and not over:
        kind, icon = "now", "dot"
    else:
        kind, icon = "", "circle"
    return Step(
        stage=stage,
        title=title_of(stage),
        detail=_detail(stage, rows, approvals, now, over),
        kind=kind,
        icon=icon,
        shown=shown is not None and shown.pk == stage.pk,
        has_evidence=bool(rows),
    )


def title_of(stage: Stage) -> str:
    """Return what people call a stage: «Canary 50 %»."""
    share = stage.params.get("percent") if stage.kind == "shadow" else stage.params.get("weight")
    return stage.kind.capitalize() + (f" {share} %" if share is not None else "")


def _detail(stage: Stage, rows: Sequence[Evidence], approvals: Sequence[Approval], now: datetime, over: bool) -> str:
    said = []
    if stage.kind == "approval":
        given = sum(row.approve and row.stage_id == stage.pk and row.attempt == stage.attempt for row in approvals)
        said.append(f"{given} of {stage.params.get('approvers', 1)}, not the requester")
    elif stage.kind == "full" and stage.state == StageState.WAITING:
        said.append("every node, last known good kept")
    elif rows:
        most = max(rows, key=lambda row: row.samples)
        unit = "pairs" if stage.kind == "shadow" else "requests"
        reached = f"{most.samples:,}"
        said.append(f"{reached} of {most.needed:,} {unit}" if most.samples < most.needed else f"{reached} {unit}")
    elif stage.state == StageState.RUNNING and not over:
        said.append("nodes get ready" if stage.ready_at is None else "gathering evidence")
    if stage.started_at and stage.kind != "approval" and not (over and stage.finished_at is None):
        said.append(_length((stage.finished_at or now) - stage.started_at))
    if stage.attempt > 1:
        said.append(f"attempt {stage.attempt}")
    return " · ".join(said)


def _length(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _places(rollout: Rollout) -> list[Place]:
    """Return participants with what each reports of the model, by name; three queries."""
    participants = list(rollout.participants.select_related("node").order_by("node__name"))
    nodes = [participant.node_id for participant in participants]
    rows = DesiredDeployment.objects.filter(node__in=nodes, model=rollout.model_id).select_related(
        "version", "artifact"
    )
    wanted: dict[UUID, list[DesiredDeployment]] = defaultdict(list)
    for row in rows.defer("artifact__manifest", "version__lineage_inputs").order_by("version__number"):
        wanted[row.node_id].append(row)
    reports = {row.deployment_id: row for row in ReportedDeployment.objects.filter(node__in=nodes)}
    return [_place(rollout, participant, wanted[participant.node_id], reports) for participant in participants]


def _place(
    rollout: Rollout,
    participant: Participant,
    wanted: Sequence[DesiredDeployment],
    reports: Mapping[UUID, ReportedDeployment],
) -> Place:
    state, reason, shares = "", "", []
    for desired in wanted:
        report = reports.get(desired.pk)
        known = report is not None and report.digest == desired.artifact.digest
        if desired.version_id == rollout.version_id:
            state = report.state if report is not None and known else "unreported"
            reason = report.reason if report is not None and known else ""
        if report is not None and known and report.weight_in_force:
            shares.append(Share(desired.version.number, report.weight_in_force))
    return Place(participant, state, reason, tuple(shares))


def _size_of(rollout: Rollout) -> int | None:
    if rollout.baseline_id is None:
        return None
    sizes = Artifact.objects.filter(version=rollout.baseline_id).values_list("blob__total_bytes", flat=True)
    return sizes.first()
