"""What the console's pages read about rollouts: the inbox, running rollouts, who may do what and why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Prefetch, QuerySet

from apps.access.models import Role, User
from apps.access.selectors import for_user, teams_for
from apps.rollouts.models import Approval, PauseReason, Phase, Rollout, Stage, StageState

DECIDABLE = frozenset({PauseReason.APPROVAL, PauseReason.INCONCLUSIVE})


@dataclass(frozen=True)
class May:
    """Whether a person may do something, and if not, the sentence that says why."""

    allowed: bool
    why_not: str = ""


YES = May(True)


def roles_of(user: User) -> dict[UUID, Role]:
    """Return the user's role in each of their teams; a superuser is an admin in all."""
    if user.is_superuser:
        return dict.fromkeys(teams_for(user).values_list("pk", flat=True), Role.ADMIN)
    return {team: Role(role) for team, role in user.memberships.values_list("team_id", "role")}


def _has(roles: Mapping[UUID, Role], team: UUID, needed: Role, what: str) -> May:
    held = roles.get(team)
    if held is not None and held.rank >= needed.rank:
        return YES
    if held is None:
        return May(False, f"You are not a member of this team; {what} takes the role {needed.label.lower()}.")
    return May(False, f"Your role here is {held.label.lower()}; {what} takes {needed.label.lower()}.")


def may_decide(user: User, rollout: Rollout, roles: Mapping[UUID, Role], decided: Iterable[Approval] = ()) -> May:
    """Return whether `user` may approve or reject `rollout` as it stands."""
    if rollout.phase != Phase.PAUSED or rollout.pause_reason not in DECIDABLE:
        return May(False, "Nothing waits for a decision.")
    role = _has(roles, rollout.team_id, Role.APPROVER, "deciding")
    if not role.allowed:
        return role
    if rollout.requested_by_id == user.pk:
        return May(False, "You asked for this rollout, so another person must decide on it.")
    if any(approval.user_id == user.pk for approval in decided):
        return May(False, "You have decided already; another approver must too.")
    return YES


def may_operate(rollout: Rollout, roles: Mapping[UUID, Role]) -> May:
    """Return whether the holder of `roles` may pause, resume or abort `rollout`."""
    if rollout.phase in Rollout.TERMINAL:
        return May(False, f"The rollout is {Phase(rollout.phase).label.lower()}.")
    return _has(roles, rollout.team_id, Role.OPERATOR, "this")


def _with_stages(rows: QuerySet[Rollout]) -> QuerySet[Rollout]:
    stages = Prefetch("stages", Stage.objects.order_by("index"), to_attr="steps")
    return rows.select_related("model", "version", "baseline", "pool", "requested_by").prefetch_related(stages)


def open_rollouts(user: User) -> list[Rollout]:
    """Return the user's teams' unfinished rollouts, those that wait for a person first, with their `steps`."""
    rows = _with_stages(for_user(Rollout.objects.exclude(phase__in=Rollout.TERMINAL), user))
    return sorted(rows, key=lambda row: (row.phase != Phase.PAUSED, row.created_at))


def waiting_count(user: User) -> int:
    """Return how many rollouts wait for a decision that `user` may take."""
    teams = [team for team, role in roles_of(user).items() if role.rank >= Role.APPROVER.rank]
    if not teams:
        return 0
    waiting = Rollout.objects.filter(team__in=teams, phase=Phase.PAUSED, pause_reason__in=DECIDABLE)
    return waiting.exclude(requested_by=user).exclude(approvals__user=user, approvals__stage__state=StageState.RUNNING).count()
