"""Starting a rollout: everything that is checked before a node hears of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction

from apps.access.models import Membership, Role, User
from apps.access.services import require_actor
from apps.audit.transitions import SYSTEM, Actor, move, record
from apps.fleet.models import Pool
from apps.lib.errors import Conflict, DomainError, Forbidden
from apps.lib.wake import wake
from apps.models.models import Alias, Artifact, ModelVersion, RegisteredModel, VersionState
from apps.models.selectors import get_artifact
from apps.models.services import CHAMPION
from apps.rollouts.defaults import FIRST
from apps.rollouts.effects import announce
from apps.rollouts.models import Hold, Phase, Rollout, Stage, Strategy
from apps.rollouts.participants import Before, add_participants, served_before
from apps.rollouts.plans import DEFAULT_LIMITS
from apps.rollouts.reconcile import TASK
from apps.rollouts.strategy import AnyStage, analysing_stages, dump_plan, parse_plan, plan_sha256

GATES = ("shadow", "canary")  # kinds of stages that hold a candidate against what is served


def start_rollout(
    *,
    model: RegisteredModel,
    version: ModelVersion,
    pool: Pool,
    actor: Actor,
    reason: str,
    now: datetime,
    strategy: Strategy | None = None,
    stages: Sequence[Any] | None = None,
) -> Rollout:
    """Begin to roll a published version out over a pool, by a strategy or by stages given here.

    Raises Forbidden; DomainError (reason_missing, bad_plan, too_few_samples, wrong_model, wrong_team); NotFound
    (not_published); Conflict: `held` (naming who can lift it), `rollout_open`, `no_nodes`, `already_serving`,
    `nothing_to_compare`, `gates_needed`, `approval_needed`, `lineage_incomplete`.
    """
    require_actor(actor, model.team_id, Role.OPERATOR)
    if actor.user is None:
        raise Forbidden("person_needed", "A rollout is asked for by a person or a person's API token.")
    plan = _plan(strategy, stages, reason)
    artifact = _check_version(model, version, pool)
    _check_hold(artifact)
    before = served_before(model, pool)
    _check_fits(plan, before, artifact, pool)
    try:
        with transaction.atomic():
            _supersede_pending(model, pool, version, now)
            rollout = _create(model, artifact, pool, strategy, plan, before, actor, actor.user, reason, now)
    except IntegrityError as taken:
        raise _open_rollout(model, pool) from taken
    return rollout


def _plan(strategy: Strategy | None, stages: Sequence[Any] | None, reason: str) -> tuple[AnyStage, ...]:
    if not reason.strip():
        raise DomainError("reason_missing", "Say what the rollout is for: the audit log keeps it.")
    if (strategy is None) == (stages is None):
        raise DomainError("bad_plan", "Name a strategy or give the stages, one of the two.")
    return parse_plan(strategy.stages if strategy is not None else list(stages or ()))


def _check_version(model: RegisteredModel, version: ModelVersion, pool: Pool) -> Artifact:
    if version.model_id != model.pk:
        raise DomainError("wrong_model", f"{version} is no version of «{model}».")
    if pool.team_id != model.team_id:
        raise DomainError("wrong_team", f"The pool «{pool}» belongs to another team than «{model}».")
    if version.state != VersionState.PUBLISHED:
        raise Conflict("not_published", f"{version} is {version.state}; publish it before you roll it out.")
    if not all((version.model_hash, version.data_hash, version.env_hash, version.build_hash)):
        raise Conflict(
            "lineage_incomplete", f"{version} lacks a part of its lineage; publish a version that has all four."
        )
    return get_artifact(version)


def _check_hold(artifact: Artifact) -> None:
    hold = (
        Hold.objects.filter(digest=artifact.digest, lifted_at=None).select_related("rollout", "version__model").first()
    )
    if hold is None:
        return
    people = Membership.objects.filter(team_id=hold.team_id, role__in=[Role.APPROVER, Role.ADMIN])
    names = sorted(people.values_list("user__username", flat=True))[:5]
    who = f"an approver of the team ({', '.join(names)})" if names else "a superuser"
    raise Conflict(
        "held", f"{hold.version} is on hold since rollout {hold.rollout}: {hold.reason} Only {who} can lift it."
    )


def _check_fits(plan: Sequence[AnyStage], before: Before, artifact: Artifact, pool: Pool) -> None:
    """Gates need something to compare with; what is served already may only be followed through gates."""
    if not before:
        raise Conflict("no_nodes", "No node of the pool takes work; enrol one, or uncordon one.")
    served = [each for each in before.values() if each is not None]
    if all(each == artifact for each in before.values()):
        raise Conflict("already_serving", f"Every node of the pool serves {artifact.version} already.")
    others = [each for each in served if each != artifact]
    if analysing_stages(plan) and not others:
        raise Conflict(
            "nothing_to_compare", f"The pool serves no other version of this model yet; use the strategy «{FIRST}»."
        )
    if not analysing_stages(plan) and others and not _has_passed(artifact, pool):
        raise Conflict(
            "gates_needed",
            f"The pool serves {others[0].version}; a plan without shadow or canary may not replace it. "
            f"Use another strategy than «{FIRST}».",
        )
    if others and pool.requires_approval and not _asks_people(plan) and analysing_stages(plan):
        raise Conflict(
            "approval_needed",
            f"On pool «{pool}» a person decides after the gates: put an «approval» stage right before «full», or have "
            "an admin lift that rule for the pool.",
        )


def _asks_people(plan: Sequence[AnyStage]) -> bool:
    """Tell whether people are asked once all evidence is there: behind the last gate."""
    kinds = [stage.kind for stage in plan]
    gates = [index for index, kind in enumerate(kinds) if kind in GATES]
    return "approval" in kinds[gates[-1] if gates else 0 :]


def _has_passed(artifact: Artifact, pool: Pool) -> bool:
    """Tell whether the champion has passed gates on this very pool, so that a node that missed it may catch up.

    The alias alone proves nothing: a person may move it, and so does a first rollout on nodes that served nothing.
    """
    gated = Rollout.objects.filter(artifact=artifact, pool=pool, phase=Phase.COMPLETED, stages__kind__in=GATES)
    return Alias.objects.filter(version=artifact.version_id, name=CHAMPION).exists() and gated.exists()


def _supersede_pending(model: RegisteredModel, pool: Pool, version: ModelVersion, now: datetime) -> None:
    """A newer request takes the place of one that has not begun; one that has begun stands."""
    pending = Rollout.objects.select_for_update().filter(model=model, pool=pool, phase=Phase.PENDING).first()
    if pending is not None and pending.version_id != version.pk:
        sentence = f"{version} was asked for before it began."
        changes = {"finished_at": now, "decision": sentence}
        move(pending, Phase.SUPERSEDED, actor=SYSTEM, reason=sentence, now=now, changes=changes)


def _open_rollout(model: RegisteredModel, pool: Pool) -> Conflict:
    open_ = Rollout.objects.filter(model=model, pool=pool).exclude(phase__in=Rollout.TERMINAL).first()
    which = f"rollout {open_} is {open_.phase}" if open_ is not None else "another rollout was open"
    return Conflict("rollout_open", f"On pool «{pool}» {which}; wait for its end, or abort it first.")


def _most_common(before: Before, candidate: Artifact) -> ModelVersion | None:
    """Return the version that most nodes serve, the candidate aside: what people call the baseline."""
    counts = Counter(each.version for each in before.values() if each is not None and each != candidate)
    return counts.most_common(1)[0][0] if counts else None


def _create(
    model: RegisteredModel,
    artifact: Artifact,
    pool: Pool,
    strategy: Strategy | None,
    plan: Sequence[AnyStage],
    before: Before,
    actor: Actor,
    requester: User,
    reason: str,
    now: datetime,
) -> Rollout:
    rollout = Rollout.objects.create(
        team_id=model.team_id,
        model=model,
        version=artifact.version,
        artifact=artifact,
        baseline=_most_common(before, artifact),
        pool=pool,
        strategy=strategy,
        plan=dump_plan(plan),
        plan_sha256=plan_sha256(plan),
        reason=reason.strip(),
        requested_by=requester,
        requested_via=actor.label if actor.kind == "token" else "",
        due_at=now,
        phase_deadline=now + timedelta(seconds=DEFAULT_LIMITS.pending_s),
        created_at=now,
    )
    Stage.objects.bulk_create(
        Stage(team_id=model.team_id, rollout=rollout, index=index, kind=stage.kind, params=params)
        for index, (stage, params) in enumerate(zip(plan, rollout.plan, strict=True))
    )
    add_participants(rollout, before)
    data = {"strategy": strategy.slug if strategy else None, "digest": artifact.digest, "pool": pool.slug}
    record(rollout, "rollout.started", actor=actor, reason=reason, now=now, to_state=Phase.PENDING, data=data)
    announce(rollout, "rollout.started", f"{actor.label} asked for it: {reason.strip()}", now)
    wake(TASK, rollout.pk)
    return rollout
