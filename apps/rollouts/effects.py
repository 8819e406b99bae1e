"""What the planner orders, done: every change of a tick in one transaction, under the lease it was claimed with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import singledispatchmethod
from typing import Any

from django.conf import settings
from django.db import transaction

from apps.audit.outbox import emit
from apps.audit.transitions import SYSTEM, Stale, move, record
from apps.fleet.services import DesiredSpec, ring_compiler, set_desired
from apps.lib.canonical import canonical_json
from apps.models.models import Artifact
from apps.models.services import CHAMPION, move_alias
from apps.rollouts import evidence
from apps.rollouts.findings import Finding
from apps.rollouts.models import (
    EvidenceSnapshot,
    Hold,
    Participant,
    PauseReason,
    Phase,
    Rollout,
    Stage,
    StageState,
)
from apps.rollouts.participants import add_newcomers
from apps.rollouts.plans import (
    MOVES,
    Action,
    Await,
    Complete,
    CompleteReturn,
    ExcludeNode,
    ExtendWindow,
    IncludeNode,
    MarkReady,
    Pause,
    Remind,
    Resume,
    RollBack,
    SetWeights,
    Spec,
    StartStage,
    Which,
)
from apps.rollouts.snapshot import Loaded
from protocol import failpoints
from protocol.messages import Role


def lease() -> timedelta:
    """Return how long a claimed rollout is its worker's. When that worker dies, nobody decides until it is over."""
    return timedelta(seconds=settings.FARRIER.rollout_lease_s)


@dataclass(frozen=True)
class Judged:
    """The stage whose evidence was looked at in this tick, and what it said."""

    stage: Stage
    findings: Sequence[Finding]


def apply(loaded: Loaded, actions: Sequence[Action], judged: Judged | None, now: datetime) -> bool:
    """Do all of `actions`, or nothing; return whether they changed anything that the next plan would see.

    Raises Stale when the lease has passed to another worker or a person has moved the rollout meanwhile.
    """
    act = _Act(loaded, judged, now)
    with transaction.atomic():
        act.fence()
        if judged is not None:
            evidence.write(judged.stage, judged.findings, now)
        # nodes' rows are locked in one order by everybody
        for action in sorted(actions, key=lambda action: str(action.node) if isinstance(action, SetWeights) else ""):
            act.do(action)
        if any(isinstance(action, SetWeights) for action in actions):
            ring_compiler()
        failpoints.pass_by("rollout.applied")
    return any(isinstance(action, (*MOVES, SetWeights, MarkReady)) for action in actions)


class _Act:
    """One tick's changes to one rollout. A class only so that each kind of action is a method."""

    def __init__(self, loaded: Loaded, judged: Judged | None, now: datetime) -> None:
        self.loaded, self.judged, self.now = loaded, judged, now
        self.rollout = loaded.rollout
        self.guard = {"lease_epoch": loaded.epoch}

    def fence(self) -> None:
        """Lock the row if it still is as it was when this tick read it; a command or another worker may have come."""
        as_read = Rollout.objects.filter(pk=self.rollout.pk, revision=self.rollout.revision, **self.guard)
        if as_read.update(lease_until=self.now + lease()) != 1:
            raise Stale(self.rollout)

    @singledispatchmethod
    def do(self, action: Any) -> None:
        raise TypeError(f"nobody knows how to do {action!r}")

    @do.register
    def _(self, action: Await) -> None:
        """Nothing: the caller writes down when to look again."""

    @do.register
    def _(self, action: ExcludeNode) -> None:
        self._participant(action, excluded_reason=action.reason, excluded_at=self.now)
        self._note("rollout.node_excluded", action.reason, node=str(action.node))

    @do.register
    def _(self, action: IncludeNode) -> None:
        self._participant(action, excluded_reason="", excluded_at=None)
        self._note("rollout.node_included", "It is well again.", node=str(action.node))

    @do.register
    def _(self, action: SetWeights) -> None:
        participant = next(row for row in self.loaded.participants if row.node_id == action.node)
        tagged = action.target.stage is not None
        set_desired(
            node=self.loaded.nodes[action.node],
            model=self.rollout.model,
            specs=[self._spec(spec, participant) for spec in action.target.specs],
            rollout_id=self.rollout.pk if tagged else None,
            stage=action.target.stage,
            attempt=action.target.attempt,
            ring=False,
        )

    @do.register
    def _(self, action: MarkReady) -> None:
        self._stage(self.loaded.stage, StageState.RUNNING, ready_at=self.now, deadline=action.deadline)
        self._note("rollout.stage_ready", "Every awaited node serves it; evidence counts from now.")

    @do.register
    def _(self, action: ExtendWindow) -> None:
        self._stage(self.loaded.stage, StageState.RUNNING, deadline=action.deadline)
        self._note("rollout.window_extended", action.sentence)

    @do.register
    def _(self, action: StartStage) -> None:
        old, new = self.loaded.stage, self.loaded.stages[action.index]
        waits = action.phase == Phase.PAUSED
        changes = {
            "stage_index": action.index,
            "phase_deadline": action.deadline,
            "pause_reason": PauseReason.APPROVAL if waits else "",
        }
        self._move(action.phase, action.sentence, changes, verb="rollout.stage_started", stage=new)
        if action.promoted:
            self._stage(old, StageState.RUNNING, state=StageState.PASSED, finished_at=self.now)
        self._stage(
            new,
            StageState.WAITING,
            state=StageState.RUNNING,
            attempt=new.attempt + 1,
            started_at=self.now,
            deadline=action.deadline,
            selected=None if action.selected is None else [str(node) for node in action.selected],
        )
        if action.promoted:
            add_newcomers(self.rollout)
        if waits:
            self._ask(new, "rollout.waiting_for_approval", action.sentence)

    @do.register
    def _(self, action: Pause) -> None:
        changes = {"pause_reason": action.reason, "phase_deadline": action.deadline}
        self._move(Phase.PAUSED, action.sentence, changes)
        if action.reason == PauseReason.INCONCLUSIVE:
            self._ask(self.loaded.stage, "rollout.paused", action.sentence)
        else:
            self._tell("rollout.paused", action.sentence)

    @do.register
    def _(self, action: Resume) -> None:
        self._move(action.phase, action.sentence, {"pause_reason": "", "phase_deadline": action.deadline}, "resumed")
        self._stage(self.loaded.stage, StageState.RUNNING, deadline=action.deadline)

    @do.register
    def _(self, action: RollBack) -> None:
        changes = {"pause_reason": "", "phase_deadline": action.deadline, "decision": action.sentence}
        self._move(Phase.ROLLING_BACK, action.sentence, changes)
        Stage.objects.filter(pk=self.loaded.stage.pk, state=StageState.RUNNING).update(
            state=StageState.FAILED, finished_at=self.now
        )
        self._hold(action.sentence)

    @do.register
    def _(self, action: CompleteReturn) -> None:
        reason = "Every reachable node reports what it served before."
        self._move(action.phase, reason, {"finished_at": self.now})
        self._tell(f"rollout.{action.phase}", self.rollout.decision)

    @do.register
    def _(self, action: Complete) -> None:
        changes = {"finished_at": self.now, "decision": action.sentence}
        self._move(Phase.COMPLETED, action.sentence, changes)
        self._stage(self.loaded.stage, StageState.RUNNING, state=StageState.PASSED, finished_at=self.now)
        move_alias(
            model=self.rollout.model,
            name=CHAMPION,
            version=self.rollout.version,
            actor=SYSTEM,
            reason=f"Rollout {self.rollout} completed on pool {self.rollout.pool}.",
            now=self.now,
            rollout_id=self.rollout.pk,
        )
        self._tell("rollout.completed", action.sentence)

    @do.register
    def _(self, action: Remind) -> None:
        Rollout.objects.filter(pk=self.rollout.pk, **self.guard).update(phase_deadline=action.deadline)
        self._note("rollout.stuck", action.sentence)
        self._tell("rollout.stuck", action.sentence)

    def _spec(self, spec: Spec, participant: Participant) -> DesiredSpec:
        artifact = self.rollout.artifact if spec.which is Which.CANDIDATE else participant.previous_artifact
        if not isinstance(artifact, Artifact):
            raise ValueError(f"node {participant.node_id} served nothing before, so it can't be given that")
        return DesiredSpec(artifact, Role(spec.role), spec.weight, spec.mirror_percent)

    def _move(
        self, to: str, reason: str, changes: dict[str, Any], verb: str | None = None, stage: Stage | None = None
    ) -> None:
        verb = None if verb is None else "rollout." + verb.removeprefix("rollout.")
        data = {"stage": (stage or self.loaded.stage).index, "kind": (stage or self.loaded.stage).kind}
        move(
            self.rollout,
            to,
            actor=SYSTEM,
            reason=reason,
            now=self.now,
            changes=changes,
            guard=self.guard,
            verb=verb,
            data=data,
        )

    def _stage(self, stage: Stage, expected: StageState, **values: Any) -> None:
        """Change a stage that is in the state this tick saw. Its row must be hit: nothing is promoted twice."""
        if Stage.objects.filter(pk=stage.pk, state=expected, attempt=stage.attempt).update(**values) != 1:
            raise Stale(self.rollout)
        for name, value in values.items():
            setattr(stage, name, value)

    def _participant(self, action: ExcludeNode | IncludeNode, **values: Any) -> None:
        Participant.objects.filter(rollout=self.rollout, node_id=action.node).update(**values)

    def _note(self, verb: str, reason: str, **data: Any) -> None:
        stage = self.loaded.stage
        data = {"stage": stage.index, "attempt": stage.attempt, **data}
        record(self.rollout, verb, actor=SYSTEM, reason=reason, now=self.now, data=data)

    def _ask(self, stage: Stage, topic: str, sentence: str) -> None:
        """Freeze the evidence that a person is to decide on, and tell people that it waits."""
        judged = self.judged
        content = {
            "rollout": str(self.rollout.pk),
            "digest": self.rollout.artifact.digest,
            "plan_sha256": self.rollout.plan_sha256,
            "stage": {"index": stage.index, "kind": stage.kind, "attempt": stage.attempt},
            "evidence_of": None if judged is None else {"index": judged.stage.index, "attempt": judged.stage.attempt},
            "findings": [] if judged is None else [asdict(finding) for finding in judged.findings],
            "nodes": [
                {"name": self.loaded.nodes[row.node_id].name, "excluded": row.excluded_reason}
                for row in self.loaded.participants
            ],
            "at": self.now.isoformat(),
        }
        EvidenceSnapshot.objects.create(
            rollout=self.rollout,
            stage=stage,
            attempt=stage.attempt,
            sha256=hashlib.sha256(canonical_json(content)).hexdigest(),
            plan_sha256=self.rollout.plan_sha256,
            content=content,
            created_at=self.now,
        )
        self._tell(topic, sentence)

    def _hold(self, sentence: str) -> None:
        hold, placed = Hold.objects.get_or_create(
            digest=self.rollout.artifact.digest,
            lifted_at=None,
            defaults={
                "team_id": self.rollout.team_id,
                "version": self.rollout.version,
                "rollout": self.rollout,
                "reason": sentence,
                "placed_at": self.now,
            },
        )
        if placed:
            record(hold, "hold.placed", actor=SYSTEM, reason=sentence, now=self.now, data={"digest": hold.digest})

    def _tell(self, topic: str, sentence: str) -> None:
        announce(self.rollout, topic, sentence, self.now)


def announce(rollout: Rollout, topic: str, sentence: str, now: datetime) -> None:
    """Tell the team's webhooks; in the transaction of what happened."""
    payload = {
        "rollout": str(rollout.pk),
        "number": rollout.number,
        "model": rollout.model.slug,
        "version": rollout.version.number,
        "digest": rollout.artifact.digest,
        "pool": rollout.pool.slug,
        "phase": rollout.phase,
        "sentence": sentence,
        "at": now.isoformat(),
    }
    emit(topic, payload, rollout.team_id, now=now)
