"""Every read of rollouts for programs, scoped by team; what only pages read is in page_selectors.py."""

from __future__ import annotations

from uuid import UUID

from django.contrib.auth.models import AnonymousUser
from django.db.models import F, Prefetch, QuerySet

from apps.access.models import Role, User
from apps.access.selectors import for_user
from apps.fleet.models import Pool
from apps.lib.errors import NotFound
from apps.rollouts.models import (
    Approval,
    Evidence,
    EvidenceSnapshot,
    Hold,
    Participant,
    PauseReason,
    Phase,
    Rollout,
    Stage,
    Strategy,
)

Anyone = User | AnonymousUser
DECIDABLE = (PauseReason.APPROVAL, PauseReason.INCONCLUSIVE)


def rollouts_for(user: Anyone) -> QuerySet[Rollout]:
    """Return the rollouts that `user` may see, newest first, with what a list row shows; two queries."""
    return (
        for_user(Rollout.objects.all(), user)
        .select_related("model", "version__model", "baseline", "artifact", "pool", "strategy", "requested_by")
        .defer("artifact__manifest", "version__lineage_inputs", "baseline__lineage_inputs")
        .prefetch_related(Prefetch("stages", Stage.objects.order_by("index")))
        .order_by("-number")
    )


def get_rollout(user: Anyone, rollout_id: UUID) -> Rollout:
    """Return one rollout with its participants and decisions. Raises NotFound."""
    participants = Participant.objects.select_related("node", "previous").order_by("node__name")
    approvals = Approval.objects.select_related("user", "stage", "snapshot").order_by("at")
    rows = rollouts_for(user).prefetch_related(Prefetch("participants", participants), Prefetch("approvals", approvals))
    rollout = rows.filter(pk=rollout_id).first()
    if rollout is None:
        raise NotFound("rollout_not_found", "There is no such rollout in your teams; see /api/v1/rollouts.")
    return rollout


def waiting_for(user: Anyone) -> QuerySet[Rollout]:
    """Return the rollouts that wait for a decision that `user` may take: their approver, not their requester."""
    if not isinstance(user, User):
        return Rollout.objects.none()
    waiting = rollouts_for(user).filter(phase=Phase.PAUSED, pause_reason__in=DECIDABLE).exclude(requested_by=user)
    if not user.is_superuser:
        may = user.memberships.filter(role__in=[Role.APPROVER, Role.ADMIN])
        waiting = waiting.filter(team__in=may.values("team"))
    decided = Approval.objects.filter(user=user, stage__index=F("rollout__stage_index")).values("rollout")
    return waiting.exclude(pk__in=decided).order_by("phase_deadline")


def evidence_of(rollout: Rollout) -> QuerySet[Evidence]:
    """Return the evidence of a rollout by stage and attempt, in the order in which its metrics are listed."""
    rows = Evidence.objects.filter(stage__rollout=rollout).select_related("stage")
    return rows.order_by("stage__index", "attempt", "-required", "pk")


def snapshots_of(rollout: Rollout) -> QuerySet[EvidenceSnapshot]:
    """Return what people were shown when they were asked, oldest first."""
    return EvidenceSnapshot.objects.filter(rollout=rollout).select_related("stage").order_by("created_at")


def holds_for(user: Anyone) -> QuerySet[Hold]:
    """Return the holds that `user` may see, newest first."""
    rows = for_user(Hold.objects.all(), user)
    return rows.select_related("version__model", "rollout", "lifted_by").order_by("-placed_at")


def get_hold(user: Anyone, hold_id: UUID) -> Hold:
    """Return one hold. Raises NotFound."""
    hold = holds_for(user).filter(pk=hold_id).first()
    if hold is None:
        raise NotFound("hold_not_found", "There is no such hold in your teams; see /api/v1/holds.")
    return hold


def strategies_for(user: Anyone) -> QuerySet[Strategy]:
    """Return the strategies that `user` may see, by slug."""
    return for_user(Strategy.objects.all(), user).select_related("team").order_by("slug", "team__slug")


def get_strategy(user: Anyone, team_id: UUID, slug: str) -> Strategy:
    """Return a team's strategy by its slug. Raises NotFound."""
    found = strategies_for(user).filter(team_id=team_id, slug=slug).first()
    if found is None:
        raise NotFound("strategy_not_found", f"The team has no strategy «{slug}»; see /api/v1/strategies.")
    return found


def get_pool(user: Anyone, team_id: UUID, slug: str) -> Pool:
    """Return a team's pool by its slug. Raises NotFound."""
    found = for_user(Pool.objects.filter(team_id=team_id, slug=slug), user).first()
    if found is None:
        raise NotFound("pool_not_found", f"The team has no pool «{slug}».")
    return found
