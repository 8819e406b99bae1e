"""What the console's pages read about rollouts: the inbox, lists, holds, who may do what and why not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Prefetch, Q, QuerySet

from apps.access.models import Role, User
from apps.access.selectors import for_user, teams_for
from apps.fleet.models import Pool
from apps.lib.errors import NotFound
from apps.models.models import ModelVersion, RegisteredModel, VersionState
from apps.rollouts.models import Approval, Hold, Participant, PauseReason, Phase, Rollout, Stage, StageState, Strategy

DECIDABLE = frozenset({PauseReason.APPROVAL, PauseReason.INCONCLUSIVE})
OPEN = "open"  # a filter beside the phases: everything that has not ended


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


def has_role(roles: Mapping[UUID, Role], team: UUID, needed: Role, what: str) -> May:
    """Return whether `roles` hold `needed` in a team; `what` names the act in the sentence."""
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
    role = has_role(roles, rollout.team_id, Role.APPROVER, "deciding")
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
    return has_role(roles, rollout.team_id, Role.OPERATOR, "this")


def _with_stages(rows: QuerySet[Rollout]) -> QuerySet[Rollout]:
    stages = Prefetch("stages", Stage.objects.order_by("index"), to_attr="steps")
    return rows.select_related("model", "version", "baseline", "pool", "requested_by").prefetch_related(stages)


def open_rollouts(user: User) -> list[Rollout]:
    """Return the user's teams' unfinished rollouts, those that wait for a person first, with their `steps`."""
    rows = _with_stages(for_user(Rollout.objects.exclude(phase__in=Rollout.TERMINAL), user))
    return sorted(rows, key=lambda row: (row.phase != Phase.PAUSED, row.created_at))


def decisions_on(rollouts: Iterable[Rollout]) -> Mapping[UUID, list[Approval]]:
    """Return the decisions on each rollout's current stage and attempt, by rollout."""
    rows = {row.pk: row for row in rollouts}
    given: dict[UUID, list[Approval]] = defaultdict(list)
    for approval in Approval.objects.filter(rollout__in=rows).select_related("stage"):
        stage = approval.stage
        if stage.index == rows[approval.rollout_id].stage_index and approval.attempt == stage.attempt:
            given[approval.rollout_id].append(approval)
    return given


def waiting_count(user: User) -> int:
    """Return how many rollouts wait for a decision that `user` may take."""
    teams = [team for team, role in roles_of(user).items() if role.rank >= Role.APPROVER.rank]
    if not teams:
        return 0
    waiting = Rollout.objects.filter(team__in=teams, phase=Phase.PAUSED, pause_reason__in=DECIDABLE)
    decided = Approval.objects.filter(user=user, stage__state=StageState.RUNNING).values("rollout")
    return waiting.exclude(requested_by=user).exclude(pk__in=decided).count()


def rollout_list(
    user: User, *, search: str = "", phase: str = "", model: str = "", pool: str = ""
) -> QuerySet[Rollout]:
    """Return the user's rollouts with their `steps`, narrowed; `phase` may be «open»."""
    rows = _with_stages(for_user(Rollout.objects.all(), user))
    if search:
        found = Q(model__slug__icontains=search) | Q(requested_by__username__icontains=search)
        number = search.removeprefix("#")
        rows = rows.filter(found | Q(number=int(number)) if number.isdigit() else found)
    if phase == OPEN:
        rows = rows.exclude(phase__in=Rollout.TERMINAL)
    elif phase:
        rows = rows.filter(phase=phase)
    if model:
        rows = rows.filter(model__slug=model)
    if pool:
        rows = rows.filter(pool__slug=pool)
    return rows


def of_version(user: User, version: UUID) -> QuerySet[Rollout]:
    """Return the rollouts of a version, newest first."""
    return _with_stages(for_user(Rollout.objects.filter(version_id=version), user)).order_by("-number")


def open_participations(user: User, node: str) -> QuerySet[Participant]:
    """Return a node's part in rollouts that have not ended, newest first."""
    rows = for_user(Participant.objects.filter(node__name=node), user, field="rollout__team_id")
    return rows.exclude(rollout__phase__in=Rollout.TERMINAL).select_related("rollout").order_by("-rollout__number")


def holds(user: User, *, lifted: bool = False, search: str = "") -> QuerySet[Hold]:
    """Return the user's holds, newest first: the active ones, or those that were lifted."""
    rows = for_user(Hold.objects.filter(lifted_at__isnull=not lifted), user)
    if search:
        rows = rows.filter(Q(version__model__slug__icontains=search) | Q(digest__startswith=search))
    return rows.select_related("version__model", "rollout", "lifted_by").order_by("-placed_at")


def holds_of_version(user: User, version: UUID) -> QuerySet[Hold]:
    """Return every hold that was ever placed on a version's digests, newest first."""
    rows = for_user(Hold.objects.filter(version_id=version), user)
    return rows.select_related("version__model", "rollout", "lifted_by").order_by("-placed_at")


def get_hold(user: User, pk: UUID) -> Hold:
    """Return one of the user's holds. Raises NotFound."""
    found = for_user(Hold.objects.select_related("version__model", "rollout"), user).filter(pk=pk).first()
    if found is None:
        raise NotFound("hold_not_found", "There is no such hold in your teams; the list is under Holds.")
    return found


@dataclass(frozen=True)
class Offer:
    """What the form of a new rollout offers."""

    versions: list[ModelVersion]
    strategies: list[Strategy]
    pools: list[Pool]
    held: frozenset[UUID]  # versions with an active hold


def offer(user: User) -> Offer:
    """Return the versions, strategies and pools that the user may choose from."""
    versions = for_user(ModelVersion.objects.filter(state=VersionState.PUBLISHED), user)
    held = for_user(Hold.objects.filter(lifted_at__isnull=True), user).values_list("version_id", flat=True)
    return Offer(
        versions=list(versions.select_related("model").defer("lineage_inputs").order_by("model__slug", "-number")),
        strategies=list(for_user(Strategy.objects.order_by("slug"), user)),
        pools=list(for_user(Pool.objects.order_by("slug"), user)),
        held=frozenset(held),
    )


def choices(user: User) -> dict[str, list[str]]:
    """Return the models and pools that the user's rollouts can be filtered by."""
    return {
        "models": list(for_user(RegisteredModel.objects.order_by("slug"), user).values_list("slug", flat=True)),
        "pools": list(for_user(Pool.objects.order_by("slug"), user).values_list("slug", flat=True)),
    }
