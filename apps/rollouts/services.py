"""What people and CI do to rollouts. What rollouts do by themselves is in reconcile.py.

A command checks who asks, whether it may be done, and what the caller had seen (`expected_revision`); then it moves the
rollout or writes a row, and rings the worker. Decisions are only written down here: the planner applies them, so that
nothing is promoted but by the one path that checks everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from apps.access.models import Role, Team, User, slug_validator
from apps.access.services import require_actor
from apps.audit.transitions import Actor, Stale, move, record
from apps.lib.errors import Conflict, DomainError, Forbidden
from apps.lib.wake import wake
from apps.models.models import ModelVersion
from apps.models.selectors import get_artifact
from apps.rollouts.defaults import STRATEGIES
from apps.rollouts.effects import announce
from apps.rollouts.models import (
    Approval,
    Evidence,
    EvidenceSnapshot,
    Hold,
    PauseReason,
    Phase,
    Rollout,
    Stage,
    StageState,
    Strategy,
)
from apps.rollouts.planner import resumed, worsened
from apps.rollouts.plans import DEFAULT_LIMITS, StageView
from apps.rollouts.reconcile import TASK
from apps.rollouts.starting import start_rollout
from apps.rollouts.strategy import ApprovalStage, dump_plan, parse_plan

__all__ = [
    "abort_rollout",
    "approve_rollout",
    "create_strategy",
    "ensure_default_strategies",
    "lift_hold",
    "pause_rollout",
    "place_hold",
    "reject_rollout",
    "resume_rollout",
    "start_rollout",
]

DECIDABLE = (PauseReason.APPROVAL, PauseReason.INCONCLUSIVE)
ABORT_TRIES = 5


def create_strategy(
    *, team: Team, slug: str, stages: Sequence[Any], actor: Actor, now: datetime, description: str = ""
) -> Strategy:
    """Write a strategy down once it is sure that it can work.

    Raises DomainError: bad_plan, too_few_samples, bad_slug; Conflict: strategy_exists.
    """
    require_actor(actor, team, Role.OPERATOR)
    plan = parse_plan(list(stages))
    strategy = Strategy(team=team, slug=slug, description=description, stages=dump_plan(plan))
    try:
        slug_validator(slug)
    except ValidationError as bad:
        raise DomainError("bad_slug", f"«{slug}» can't name a strategy: {bad.messages[0]}") from bad
    try:
        with transaction.atomic():
            strategy.save(force_insert=True)
            record(strategy, "strategy.created", actor=actor, now=now, data={"stages": strategy.stages})
    except IntegrityError as taken:
        raise Conflict("strategy_exists", f"The team has a strategy «{slug}» already; choose another slug.") from taken
    return strategy


def ensure_default_strategies(team: Team) -> list[Strategy]:
    """Give a team the strategies that everybody starts with; what it has under their names stays."""
    return [
        Strategy.objects.get_or_create(
            team=team, slug=slug, defaults={"description": description, "stages": dump_plan(plan)}
        )[0]
        for slug, (description, plan) in STRATEGIES.items()
    ]


@dataclass(frozen=True)
class _Command:
    """Who asks for what, and why; `expected_revision` is what they had seen."""

    actor: Actor
    reason: str
    now: datetime
    expected_revision: int | None

    def check(self, rollout: Rollout, role: Role) -> None:
        require_actor(self.actor, rollout.team_id, role)
        if not self.reason.strip():
            raise DomainError("reason_missing", f"Say why you decide so on rollout {rollout}: the audit log keeps it.")
        if self.expected_revision is not None and rollout.revision != self.expected_revision:
            raise Stale(rollout)


def approve_rollout(
    rollout: Rollout, *, actor: Actor, reason: str, now: datetime, expected_revision: int | None = None
) -> Approval:
    """Say yes to the frozen evidence. With enough of them the planner promotes.

    Raises Forbidden (`four_eyes`, `role_missing`), Conflict (`not_waiting`, `already_decided`, `evidence_worsened`),
    Stale.
    """
    return _decide(rollout, _Command(actor, reason, now, expected_revision), approve=True)


def reject_rollout(
    rollout: Rollout, *, actor: Actor, reason: str, now: datetime, expected_revision: int | None = None
) -> Approval:
    """Say no to the frozen evidence; the planner rolls back. Raises as approve_rollout does."""
    return _decide(rollout, _Command(actor, reason, now, expected_revision), approve=False)


def _decide(rollout: Rollout, command: _Command, *, approve: bool) -> Approval:
    with transaction.atomic():
        # the row's lock makes the first decision the first: no tick and no other person gets between
        locked = _locked(rollout)
        stage = locked.stages.get(index=locked.stage_index)
        command.check(locked, _role_for(stage))
        user = _person(command.actor, locked)
        snapshot = _snapshot(locked, stage, command.now)
        _check_first(locked, stage, snapshot, user)
        if approve:
            _check_evidence(locked, snapshot)
        approval = Approval.objects.create(
            rollout=locked,
            stage=stage,
            attempt=stage.attempt,
            snapshot=snapshot,
            approve=approve,
            user=user,
            requester=locked.requested_by,
            reason=command.reason.strip(),
            at=command.now,
        )
        verb = "rollout.approved" if approve else "rollout.rejected"
        data = {"snapshot": snapshot.sha256, "stage": stage.index, "attempt": stage.attempt}
        record(locked, verb, actor=command.actor, reason=command.reason, now=command.now, data=data)
        _ring(locked, command.now)
    return approval


def _role_for(stage: Stage) -> Role:
    """Return the least role that may decide: an approval stage may demand admins."""
    roles = stage.params.get("roles", [Role.APPROVER]) if stage.kind == "approval" else [Role.APPROVER]
    return min((Role(role) for role in roles), key=lambda role: role.rank)


def _person(actor: Actor, rollout: Rollout) -> User:
    if actor.user is None:
        raise Forbidden("person_needed", f"Rollout {rollout} waits for a person's decision.")
    if actor.user.pk == rollout.requested_by_id:
        raise Forbidden(
            "four_eyes", f"{actor.user.get_username()} asked for rollout {rollout}; another person must decide on it."
        )
    return actor.user


def _snapshot(rollout: Rollout, stage: Stage, now: datetime) -> EvidenceSnapshot:
    """Return the frozen evidence that is up for decision."""
    if rollout.phase != Phase.PAUSED or rollout.pause_reason not in DECIDABLE:
        raise Conflict("not_waiting", f"Rollout {rollout} is {rollout.phase}; nothing waits for a decision.")
    if now >= rollout.phase_deadline:
        raise Conflict("approval_lapsed", f"The time to decide on rollout {rollout} has passed; it is rolling back.")
    found = EvidenceSnapshot.objects.filter(stage=stage, attempt=stage.attempt, plan_sha256=rollout.plan_sha256)
    snapshot = found.order_by("-created_at").first()
    if snapshot is None:
        raise Conflict("not_waiting", f"Rollout {rollout} has no evidence up for decision; read it again.")
    return snapshot


def _check_first(rollout: Rollout, stage: Stage, snapshot: EvidenceSnapshot, user: User) -> None:
    said = list(Approval.objects.filter(snapshot=snapshot).select_related("user"))
    needed = stage.params["approvers"] if stage.kind == "approval" else 1
    rejected = next((row for row in said if not row.approve), None)
    if rejected is not None or len(said) >= needed:
        last = rejected or said[-1]
        raise Conflict("already_decided", f"{last.user.get_username()} has decided on rollout {rollout} before you.")
    if any(row.user_id == user.pk for row in said):
        raise Conflict("already_decided", f"You have approved rollout {rollout} already; it takes another person.")


def _check_evidence(rollout: Rollout, snapshot: EvidenceSnapshot) -> None:
    """An approval holds for what was shown: it is refused when a required verdict is worse by now."""
    judged = snapshot.content["evidence_of"]
    if judged is None:
        return
    rows = Evidence.objects.filter(
        stage__rollout=rollout, stage__index=judged["index"], attempt=judged["attempt"], required=True
    )
    frozen = [(row["metric"], row["verdict"]) for row in snapshot.content["findings"] if row["required"]]
    worse = worsened(frozen, dict(rows.values_list("metric", "verdict")))
    if worse:
        raise Conflict(
            "evidence_worsened",
            f"{', '.join(worse)} of rollout {rollout} became worse since you were asked; look again, or reject.",
        )


def pause_rollout(
    rollout: Rollout, *, actor: Actor, reason: str, now: datetime, expected_revision: int | None = None
) -> None:
    """Stop before the next promotion; what runs goes on running and being judged. Raises IllegalMove, Stale."""
    command = _Command(actor, reason, now, expected_revision)
    with transaction.atomic():
        locked = _locked(rollout)
        command.check(locked, Role.OPERATOR)
        if locked.phase == Phase.PAUSED:
            why = PauseReason(locked.pause_reason).label
            raise Conflict("already_paused", f"Rollout {locked} is paused already: {why}.")
        deadline = now + timedelta(seconds=DEFAULT_LIMITS.operator_s)
        changes = {"pause_reason": PauseReason.OPERATOR, "phase_deadline": deadline}
        _move(locked, Phase.PAUSED, command, changes)
        announce(locked, "rollout.paused", f"{actor.label}: {reason}", now)


def resume_rollout(
    rollout: Rollout, *, actor: Actor, reason: str, now: datetime, expected_revision: int | None = None
) -> None:
    """Go on where it was paused, with a fresh window. What waits for an approval is approved, not resumed."""
    command = _Command(actor, reason, now, expected_revision)
    with transaction.atomic():
        locked = _locked(rollout)
        command.check(locked, Role.OPERATOR)
        stage = locked.stages.get(index=locked.stage_index)
        spec = parse_plan(locked.plan)[locked.stage_index]
        if locked.phase != Phase.PAUSED:
            raise Conflict("not_paused", f"Rollout {locked} is {locked.phase}, so there is nothing to resume.")
        if isinstance(spec, ApprovalStage):
            raise Conflict("approval_needed", f"Rollout {locked} waits for an approval; approve or reject it.")
        phase, deadline = resumed(StageView(stage.index, spec, ready_at=stage.ready_at), now)
        Stage.objects.filter(pk=stage.pk, state=StageState.RUNNING).update(deadline=deadline)
        _move(locked, phase, command, {"pause_reason": "", "phase_deadline": deadline}, verb="rollout.resumed")


def abort_rollout(
    rollout: Rollout, *, actor: Actor, reason: str, now: datetime, expected_revision: int | None = None
) -> None:
    """Bring every node back, whatever is going on: an abort beats a rollback, and both beat a promotion.

    Without `expected_revision` it is tried again when a tick moves the rollout in that very moment. Raises IllegalMove
    when the rollout has ended, Stale.
    """
    command = _Command(actor, reason, now, expected_revision)
    for attempt in range(ABORT_TRIES):
        try:
            return _abort(rollout, command)
        except Stale:
            if expected_revision is not None or attempt == ABORT_TRIES - 1:
                raise
    return None


def _abort(rollout: Rollout, command: _Command) -> None:
    with transaction.atomic():
        locked = _locked(rollout)
        command.check(locked, Role.OPERATOR)
        changes = {
            "pause_reason": "",
            "phase_deadline": command.now + timedelta(seconds=DEFAULT_LIMITS.returning_s),
            "decision": f"{command.actor.label} aborted it: {command.reason.strip()}",
        }
        _move(locked, Phase.ABORTING, command, changes)
        Stage.objects.filter(rollout=locked, state=StageState.RUNNING).update(
            state=StageState.FAILED, finished_at=command.now
        )


def place_hold(*, version: ModelVersion, actor: Actor, reason: str, now: datetime) -> Hold:
    """Keep a version that was rolled out once from being rolled out again. Raises Forbidden, Conflict, NotFound."""
    require_actor(actor, version.team_id, Role.OPERATOR)
    if not reason.strip():
        raise DomainError("reason_missing", f"Say why {version} must not be rolled out: the next one to try reads it.")
    rollout = Rollout.objects.filter(version=version).order_by("-number").first()
    if rollout is None:
        raise Conflict("never_rolled_out", f"{version} was never rolled out; a hold names the rollout behind it.")
    try:
        with transaction.atomic():
            hold = Hold.objects.create(
                team_id=version.team_id,
                digest=get_artifact(version).digest,
                version=version,
                rollout=rollout,
                reason=f"{actor.label}: {reason.strip()}",
                placed_at=now,
            )
            record(hold, "hold.placed", actor=actor, reason=reason, now=now, data={"digest": hold.digest})
    except IntegrityError as taken:
        raise Conflict("already_held", f"{version} is on hold already.") from taken
    return hold


def lift_hold(hold: Hold, *, actor: Actor, reason: str, now: datetime) -> None:
    """Let a digest be rolled out again. A named person does that, who is an approver. Raises Forbidden, Conflict."""
    require_actor(actor, hold.team_id, Role.APPROVER)
    if actor.user is None:
        raise Forbidden("person_needed", "A hold is lifted by a person.")
    if not reason.strip():
        raise DomainError("reason_missing", f"Say why {hold.version} may be rolled out again: the audit log keeps it.")
    with transaction.atomic():
        hit = Hold.objects.filter(pk=hold.pk, lifted_at=None).update(
            lifted_at=now, lifted_by=actor.user, lift_reason=reason.strip()
        )
        if hit != 1:
            raise Conflict("not_held", f"The hold on {hold.version} has been lifted already.")
        record(hold, "hold.lifted", actor=actor, reason=reason, now=now, data={"digest": hold.digest})
    hold.refresh_from_db()


def _locked(rollout: Rollout) -> Rollout:
    related = ("model", "version__model", "artifact", "pool", "requested_by")
    rows = Rollout.objects.select_for_update(of=("self",), no_key=True).select_related(*related)
    return rows.get(pk=rollout.pk)


def _move(rollout: Rollout, to: str, command: _Command, changes: dict[str, Any], verb: str | None = None) -> None:
    move(rollout, to, actor=command.actor, reason=command.reason.strip(), now=command.now, changes=changes, verb=verb)
    _ring(rollout, command.now)


def _ring(rollout: Rollout, now: datetime) -> None:
    """Make the rollout due and wake a worker once this has committed."""
    Rollout.objects.filter(pk=rollout.pk).update(due_at=now)
    wake(TASK, rollout.pk)
