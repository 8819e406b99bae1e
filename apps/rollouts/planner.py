"""What a rollout does next: a pure function of how it stands and what time it is.

Order of precedence: an abort or a rollback under way is finished first and never turned around; a required verdict
that failed rolls back whatever people are being asked; only then may anything be promoted. Every phase that isn't an
end has a deadline, and leaves it by itself when that passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from uuid import UUID

from apps.rollouts import targets
from apps.rollouts.findings import FAILED, SUCCESSFUL, Finding
from apps.rollouts.plans import (
    DEFAULT_LIMITS,
    SILENT,
    Action,
    Await,
    Complete,
    CompleteReturn,
    ExcludeNode,
    ExtendWindow,
    IncludeNode,
    Limits,
    MarkReady,
    NodeView,
    Pause,
    Remind,
    Resume,
    RollBack,
    SetWeights,
    Snapshot,
    StageView,
    StartStage,
)
from apps.rollouts.strategy import AnalysingStage, AnyStage, ApprovalStage, CanaryStage, FullStage, Zones

PENDING, PROGRESSING, PAUSED, PROMOTING = "pending", "progressing", "paused", "promoting"
ROLLING_BACK, ROLLED_BACK, ABORTING, ABORTED = "rolling_back", "rolled_back", "aborting", "aborted"
APPROVAL, INCONCLUSIVE, OPERATOR, NODES = "approval", "inconclusive", "operator", "nodes"

_RANK = {"failed": 0, "error": 1, "no_data": 1, "inconclusive": 2, "successful": 3}


def plan(s: Snapshot, now: datetime, limits: Limits = DEFAULT_LIMITS) -> list[Action]:
    """Return what to do, in order: at most one action that moves the rollout, and `Await` last. Ended: nothing."""
    if s.phase in (ROLLING_BACK, ABORTING):
        actions = _return(s, now, limits)
    elif s.phase == PENDING:
        actions = _begin(s, now, limits)
    elif s.phase == PROGRESSING:
        actions = _progress(s, now, limits)
    elif s.phase == PAUSED:
        actions = _wait_for_people(s, now, limits)
    elif s.phase == PROMOTING:
        actions = _promote_everywhere(s, now, limits)
    else:
        return []
    return [*actions, Await(_next_look(s, now, limits))]


def judged_stage(s: Snapshot) -> StageView | None:
    """Return the stage whose evidence counts now: the current one, or while people are asked the last before it."""
    for stage in reversed(s.stages[: s.stage_index + 1]):
        if isinstance(stage.spec, AnalysingStage):
            return stage if not isinstance(s.stage.spec, FullStage) else None
    return None


def worsened(frozen: Iterable[tuple[str, str]], now: Mapping[str, str]) -> list[str]:
    """Return the required metrics whose verdict is worse now than in the snapshot that an approval names.

    Both give verdicts by metric; one that is gone counts as no data.
    """
    return [metric for metric, verdict in frozen if _RANK[now.get(metric, "no_data")] < _RANK[verdict]]


def _begin(s: Snapshot, now: datetime, limits: Limits) -> list[Action]:
    if any(node.awaited for node in s.nodes):
        return [_start(s, 0, now, "The rollout begins.", limits, promoted=False)]
    if now < s.phase_deadline:
        return []
    return [_roll_back(s, now, limits, f"No node of pool {s.pool} takes work")]


def _progress(s: Snapshot, now: datetime, limits: Limits) -> list[Action]:
    stage = s.stage
    spec = stage.spec
    if not isinstance(spec, AnalysingStage) or stage.deadline is None:
        raise ValueError(f"stage {stage.index} ({spec.label}) can't be progressing")
    failed = _failed_verdict(s, now, limits)
    if failed:
        return failed
    side: list[Action] = [*_exclusions(s), *_weights(s)]
    if stage.ready_at is None:
        return [*side, *_until_ready(s, now, limits)]
    if _passed(s.findings) and now >= stage.ready_at + timedelta(seconds=spec.bake_s) and _ready(s):
        if s.held:
            return [*side, _pause(now, INCONCLUSIVE, s.held, limits)]
        return [*_recovered(s), *side, _start(s, s.stage_index + 1, now, _because(s.findings), limits)]
    if now < stage.deadline:
        return side
    latest = stage.ready_at + timedelta(seconds=spec.max_duration_s)
    if stage.deadline < latest:
        deadline = min(latest, now + timedelta(seconds=spec.window_s))
        return [*side, ExtendWindow(deadline, f"The window of {spec.label} is extended: {_undecided(s)}.")]
    if _passed(s.findings) and not _ready(s):
        return [*side, _pause(now, NODES, f"{_laggards(s)} while {spec.label} waited to be promoted.", limits)]
    sentence = f"{spec.label.capitalize()} did not decide within {spec.max_duration_s:g} s: {_undecided(s)}."
    return [*side, _pause(now, INCONCLUSIVE, sentence, limits)]


def _until_ready(s: Snapshot, now: datetime, limits: Limits) -> list[Action]:
    """Wait for the nodes to load what the stage needs; a version that no node can run goes back at once."""
    spec, deadline = s.stage.spec, s.stage.deadline
    if _ready(s) and isinstance(spec, AnalysingStage):
        return [MarkReady(now + timedelta(seconds=spec.window_s))]
    return _not_ready(s, now, limits, overdue=deadline is not None and now >= deadline)


def _not_ready(s: Snapshot, now: datetime, limits: Limits, *, overdue: bool) -> list[Action]:
    awaited = _awaited(s)
    broken = [node for node in awaited if node.failed]
    if broken and (overdue or len(broken) == len(awaited)):
        reasons = "; ".join(f"{node.name}: {node.candidate.reason or node.candidate.state}" for node in broken[:3])
        return [_roll_back(s, now, limits, f"{_count(broken)} could not run {s.version} ({reasons})")]
    if not overdue:
        return []
    return [_pause(now, NODES, f"{_laggards(s)} in time for {s.stage.spec.label}.", limits)]


def _wait_for_people(s: Snapshot, now: datetime, limits: Limits) -> list[Action]:
    """A pause, for whatever reason. What ran goes on and is judged: a failed verdict does not wait for anybody."""
    failed = _failed_verdict(s, now, limits)
    if failed:
        return failed
    side: list[Action] = [*_exclusions(s), *_weights(s)]
    spec = s.stage.spec
    if s.pause_reason == OPERATOR and isinstance(spec, AnalysingStage) and s.stage.ready_at is None and _ready(s):
        side.append(MarkReady(now + timedelta(seconds=spec.window_s)))  # a pause does not blind the rollback
    if s.pause_reason in (APPROVAL, INCONCLUSIVE):
        decided = _decided(s, now, limits)
        if decided:
            return [*side, *decided]
    if s.pause_reason == INCONCLUSIVE and _passed(s.findings) and not s.held and _ready(s):
        return [*side, _resume(s, now, "The evidence has become clear.")]
    if s.pause_reason == NODES and _ready(s):
        return [*side, _resume(s, now, "The nodes have become ready.")]
    if now < s.phase_deadline:
        return side
    return [*side, _roll_back(s, now, limits, _LAPSED[s.pause_reason])]


_LAPSED = {
    APPROVAL: "Nobody decided before the approval lapsed",
    INCONCLUSIVE: "The evidence stayed undecided and nobody decided",
    OPERATOR: "It stayed paused for a day",
    NODES: "Nodes did not become ready and nobody decided",
}


def _decided(s: Snapshot, now: datetime, limits: Limits) -> list[Action]:
    """Apply what people said: the first rejection, or enough approvals of evidence that hasn't worsened since."""
    rejection = next((decision for decision in s.decisions if not decision.approve), None)
    if rejection:
        return [_roll_back(s, now, limits, f"{rejection.user} rejected it («{rejection.reason}»)")]
    spec = s.stage.spec
    needed = spec.approvers if isinstance(spec, ApprovalStage) else 1
    verdicts = {finding.metric: finding.verdict for finding in s.findings}
    if len(s.decisions) < needed or worsened(s.frozen, verdicts) or s.held:
        return []
    names = " and ".join(decision.user for decision in s.decisions)
    sentence = f"Approved by {names}: «{s.decisions[-1].reason}»."
    return [*_recovered(s), _start(s, s.stage_index + 1, now, sentence, limits)]


def _promote_everywhere(s: Snapshot, now: datetime, limits: Limits) -> list[Action]:
    side: list[Action] = list(_weights(s))
    if _ready(s):
        serving = [node for node in s.nodes if node.awaited]
        return [*side, Complete(f"{s.version} serves on {_count(serving)} of pool {s.pool}.")]
    deadline = s.stage.deadline
    return [*side, *_not_ready(s, now, limits, overdue=deadline is not None and now >= deadline)]


def _return(s: Snapshot, now: datetime, limits: Limits) -> list[Action]:
    """Bring every node back; complete only when each one that can be reached says that it is."""
    side: list[Action] = list(_weights(s))
    late = [node for node in s.nodes if node.reachable and not targets.is_back(node)]
    if not late and not side:
        return [CompleteReturn(ROLLED_BACK if s.phase == ROLLING_BACK else ABORTED)]
    if now < s.phase_deadline:
        return side
    names = ", ".join(node.name for node in late) or "the fleet"
    sentence = f"{names} did not report being back; repair, quarantine or ban what does not answer."
    return [*side, Remind(sentence, now + timedelta(seconds=limits.returning_s))]


def _failed_verdict(s: Snapshot, now: datetime, limits: Limits) -> list[Action]:
    judged = judged_stage(s)
    if judged is None or judged.ready_at is None:
        return []
    failed = [finding for finding in s.findings if finding.required and finding.verdict == FAILED]
    if not failed:
        return []
    return [_roll_back(s, now, limits, failed[0].sentence.rstrip("."), judged)]


def _roll_back(s: Snapshot, now: datetime, limits: Limits, why: str, stage: StageView | None = None) -> RollBack:
    where = "before its first stage" if s.phase == PENDING else f"in {(stage or s.stage).spec.label}"
    return RollBack(f"{why}: {s.version} was rolled back {where}.", now + timedelta(seconds=limits.returning_s))


def _start(
    s: Snapshot, index: int, now: datetime, sentence: str, limits: Limits, *, promoted: bool = True
) -> StartStage:
    spec = s.stages[index].spec
    phase, length_s = _phase_of(spec, limits)
    deadline = now + timedelta(seconds=length_s)
    return StartStage(index, phase, deadline, sentence, promoted, _select(s.nodes, spec))


def _phase_of(spec: AnyStage, limits: Limits) -> tuple[str, float]:
    if isinstance(spec, ApprovalStage):
        return PAUSED, min(spec.expires_s, limits.decision_s)
    return (PROMOTING if isinstance(spec, FullStage) else PROGRESSING), spec.ready_s


def _select(nodes: tuple[NodeView, ...], spec: AnyStage) -> tuple[UUID, ...] | None:
    """Choose the nodes of a canary on some nodes, once, when it starts: healthy ones first, then by name."""
    if not isinstance(spec, CanaryStage) or isinstance(spec.nodes, str):
        return None
    usable = [node for node in nodes if node.has_previous]
    if isinstance(spec.nodes, Zones):
        return tuple(node.id for node in usable if node.zone in spec.nodes.zone)
    return tuple(node.id for node in sorted(usable, key=lambda node: (not node.awaited, node.name))[: spec.nodes])


def _pause(now: datetime, reason: str, sentence: str, limits: Limits) -> Pause:
    return Pause(reason, now + timedelta(seconds=limits.decision_s), sentence)


def _resume(s: Snapshot, now: datetime, sentence: str) -> Resume:
    return Resume(*resumed(s.stage, now), sentence)


def resumed(stage: StageView, now: datetime) -> tuple[str, datetime]:
    """Return the phase that a paused rollout goes back to, and the stage's new deadline."""
    spec = stage.spec
    if isinstance(spec, FullStage):
        return PROMOTING, now + timedelta(seconds=spec.ready_s)
    if isinstance(spec, ApprovalStage):
        raise ValueError("an approval is waited for, not resumed")
    return PROGRESSING, now + timedelta(seconds=spec.ready_s if stage.ready_at is None else spec.window_s)


def _exclusions(s: Snapshot) -> list[Action]:
    """Leave out who is sick or silent. Silence ends by itself; sickness, once on record, lasts for the attempt, lest a
    flickering condition choose which samples count.
    """
    leave = [ExcludeNode(node.id, node.sick or node.silent) for node in s.nodes if _unfit(node) and not node.excluded]
    back = [IncludeNode(node.id) for node in s.nodes if node.excluded == SILENT and not _unfit(node)]
    return [*leave, *back]


def _unfit(node: NodeView) -> bool:
    return bool(node.sick or node.silent)


def _recovered(s: Snapshot) -> list[Action]:
    return [IncludeNode(node.id) for node in s.nodes if node.excluded and not _unfit(node)]


def _weights(s: Snapshot) -> list[Action]:
    """Correct every node whose desired deployments are not what the stage wants."""
    wanted = ((node, targets.target(s, judged_stage(s), node)) for node in s.nodes)
    return [SetWeights(node.id, goal) for node, goal in wanted if goal is not None and goal != node.desired]


def _awaited(s: Snapshot) -> list[NodeView]:
    return [node for node in s.nodes if node.awaited and targets.takes_part(s, judged_stage(s), node)]


def _ready(s: Snapshot) -> bool:
    awaited = _awaited(s)
    return bool(awaited) and all(targets.is_ready(s, judged_stage(s), node) for node in awaited)


def _passed(findings: Iterable[Finding]) -> bool:
    """Every required metric must have said so; none at all is no data, which never passes."""
    required = [finding for finding in findings if finding.required]
    return bool(required) and all(finding.verdict == SUCCESSFUL for finding in required)


def _because(findings: Iterable[Finding]) -> str:
    return " ".join(finding.sentence for finding in findings if finding.required)


def _undecided(s: Snapshot) -> str:
    open_ = [
        finding.sentence.rstrip(".") for finding in s.findings if finding.required and finding.verdict != SUCCESSFUL
    ]
    return "; ".join(open_) or "no evidence has come in"


def _laggards(s: Snapshot) -> str:
    late = [node.name for node in _awaited(s) if not targets.is_ready(s, judged_stage(s), node)]
    if not late:
        return "No node of the pool was reachable, well and free to take work"
    return f"{', '.join(late[:5])} did not become ready"


def _count(nodes: list[NodeView]) -> str:
    return "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"


def _next_look(s: Snapshot, now: datetime, limits: Limits) -> datetime:
    """Look often while nodes move, and some sixty times a window while evidence gathers; never past a deadline."""
    spec, stage = s.stage.spec, s.stage
    pace_s = limits.look_s
    if s.phase == PROGRESSING and stage.ready_at is not None and isinstance(spec, AnalysingStage):
        pace_s = max(pace_s, spec.window_s / limits.looks_per_window)
    deadline = stage.deadline if s.phase in (PROGRESSING, PROMOTING) else s.phase_deadline
    look = now + timedelta(seconds=pace_s)
    return min(look, deadline) if deadline is not None and deadline > now else look
