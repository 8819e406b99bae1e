"""Who belongs where: the one place that says which teams a user sees."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

from django.contrib.auth.models import AnonymousUser
from django.db.models import Model, QuerySet

from apps.access.models import ApiToken, Membership, Role, Team, User
from apps.lib.errors import DomainError, NotFound

M = TypeVar("M", bound=Model)


def teams_for(user: User | AnonymousUser) -> QuerySet[Team]:
    """Return the teams whose objects `user` may see: a superuser all, a token's user the token's team alone."""
    if not isinstance(user, User) or not user.is_active:
        return Team.objects.none()
    teams = Team.objects.order_by("slug")
    if not user.is_superuser:
        teams = teams.filter(memberships__user=user)
    if user.confined_to is not None:
        teams = teams.filter(pk=user.confined_to)
    return teams


def for_user(rows: QuerySet[M], user: User | AnonymousUser, *, field: str = "team_id") -> QuerySet[M]:
    """Narrow `rows` to the teams that `user` may see. Every selector of every app goes through this."""
    return rows.filter(**{f"{field}__in": teams_for(user).order_by().values("pk")})


def get_team(user: User | AnonymousUser, slug: str) -> Team:
    """Return a team that `user` may see. Raises NotFound, also for a team that exists but is not theirs."""
    team = teams_for(user).filter(slug=slug).first()
    if team is None:
        raise NotFound("team_not_found", f"You belong to no team «{slug}»; ask one of its admins for a membership.")
    return team


def working_team(user: User | AnonymousUser, slug: str = "") -> Team:
    """Return the team that a new object will belong to: the named one, or the only one within reach.

    Raises DomainError when several are and none is named, NotFound when there is none.
    """
    if slug:
        return get_team(user, slug)
    teams = list(teams_for(user)[:2])
    if len(teams) == 1:
        return teams[0]
    if not teams:
        raise NotFound("no_team", "You belong to no team; ask an admin for a membership.")
    raise DomainError("team_needed", "You belong to several teams; say which one with `?team=`.")


def role_in(user: User | AnonymousUser, team_id: UUID) -> Role | None:
    """Return what `user` is in a team; None for an outsider. A superuser is an admin everywhere."""
    if not isinstance(user, User) or not user.is_active or user.confined_to not in (None, team_id):
        return None
    if user.is_superuser:
        return Role.ADMIN
    role = Membership.objects.filter(user=user, team_id=team_id).values_list("role", flat=True).first()
    return Role(role) if role else None


def has_role(user: User | AnonymousUser, team_id: UUID, role: Role) -> bool:
    """Tell whether `user` has `role` or a higher one in a team."""
    held = role_in(user, team_id)
    return held is not None and held.rank >= role.rank


def memberships_of(user: User) -> QuerySet[Membership]:
    """Return a user's memberships within reach, with their teams, by team slug."""
    return for_user(Membership.objects.filter(user=user), user).select_related("team").order_by("team__slug")


def members_of(team: Team) -> QuerySet[Membership]:
    """Return a team's members by name."""
    return Membership.objects.filter(team=team).select_related("user").order_by("user__username")


def tokens_of(user: User) -> QuerySet[ApiToken]:
    """Return a user's own API tokens, newest first."""
    return for_user(ApiToken.objects.filter(user=user), user).select_related("team").order_by("-created")


def get_token(user: User, token_key: str) -> ApiToken:
    """Return one of the user's own tokens by its public beginning. Raises NotFound."""
    token = tokens_of(user).filter(token_key=token_key).first()
    if token is None:
        raise NotFound("token_not_found", "You own no API token of that id; list yours at /api/v1/tokens.")
    return token
