"""Every write to users, teams, memberships and API tokens."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.contrib.auth.models import AnonymousUser
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from apps.access import selectors
from apps.access.actors import Actor, ActorKind, note
from apps.access.models import ApiToken, IdempotencyKey, Membership, Role, Scope, Team, User, slug_validator
from apps.lib.errors import Conflict, DomainError, Forbidden

IDEMPOTENCY_LIFE = timedelta(hours=24)
TOKEN_LIFE_MAX = timedelta(days=366)


def require_role(user: User | AnonymousUser | None, team: Team | UUID, role: Role) -> None:
    """Pass silently when `user` has `role`, or a higher one, in `team`. Raises Forbidden with a sentence."""
    team_id = team.pk if isinstance(team, Team) else team
    if user is not None and selectors.has_role(user, team_id, role):
        return
    name = user.get_username() if user is not None else ""
    held = selectors.role_in(user, team_id) if user is not None else None
    standing = f"{name or 'The caller'} is {held.label.lower() if held else 'no member'} of this team"
    raise Forbidden(
        "role_missing",
        f"{standing}; this needs the role {role.label.lower()}. Ask one of the team's admins.",
    )


def require_actor(actor: Actor, team: Team | UUID, role: Role) -> None:
    """Pass silently for the system itself and for nodes; a person, or a token's owner, needs `role` in `team`."""
    if actor.kind in (ActorKind.PERSON, ActorKind.TOKEN):
        require_role(actor.user, team, role)


def create_user(
    *,
    username: str,
    password: str,
    actor: Actor,
    now: datetime,
    email: str = "",
    superuser: bool = False,
) -> User:
    """Create a person who may sign in. Raises Conflict for a taken name, DomainError for a weak password."""
    user = User(username=username, email=email, is_superuser=superuser, is_staff=superuser)
    try:
        user.clean_fields(exclude=["password"])
        validate_password(password, user)
    except ValidationError as bad:
        raise DomainError("bad_user", f"The user «{username}» was not created: {' '.join(bad.messages)}") from bad
    user.set_password(password)
    try:
        with transaction.atomic():
            user.save(force_insert=True)
            note(user, "user.created", actor=actor, now=now, data={"superuser": superuser})
    except IntegrityError as taken:
        raise Conflict("user_exists", f"There is a user «{username}» already; choose another name.") from taken
    return user


def create_team(*, slug: str, name: str, actor: Actor, now: datetime) -> Team:
    """Create a team. Raises Conflict for a taken slug, DomainError for a malformed one."""
    try:
        slug_validator(slug)
    except ValidationError as bad:
        raise DomainError("bad_slug", f"«{slug}» can't name a team: {bad.messages[0]}") from bad
    team = Team(slug=slug, name=name)
    try:
        with transaction.atomic():
            team.save(force_insert=True)
            note(team, "team.created", actor=actor, now=now)
    except IntegrityError as taken:
        raise Conflict("team_exists", f"There is a team «{slug}» already; choose another slug.") from taken
    return team


def set_membership(*, user: User, team: Team, role: Role, actor: Actor, now: datetime) -> Membership:
    """Make `user` a member of `team` with `role`, or change the role."""
    with transaction.atomic():
        membership, created = Membership.objects.select_for_update().get_or_create(
            user=user, team=team, defaults={"role": role}
        )
        before = "" if created else membership.role
        if before != role:
            membership.role = role
            membership.save(update_fields=["role"])
            data = {"user": user.get_username(), "role": role, "before": before}
            note(team, "team.member_set", actor=actor, now=now, data=data)
    return membership


def remove_membership(*, user: User, team: Team, actor: Actor, now: datetime, reason: str = "") -> None:
    """End a membership; the user's API tokens of that team end with it."""
    with transaction.atomic():
        gone, _ = Membership.objects.filter(user=user, team=team).delete()
        if gone:
            ApiToken.objects.filter(user=user, team=team).delete()
            data = {"user": user.get_username()}
            note(team, "team.member_removed", actor=actor, now=now, reason=reason, data=data)


def create_api_token(
    *,
    user: User,
    team: Team,
    name: str,
    scopes: Sequence[Scope],
    actor: Actor,
    now: datetime,
    life: timedelta | None = None,
) -> tuple[ApiToken, str]:
    """Create a token that acts as `user` within `team` and `scopes`; return it and its secret, kept nowhere.

    Raises Forbidden when the user is no member, or when a token would make one that can do more than itself.
    """
    require_role(user, team, Role.VIEWER)
    if not scopes:
        raise DomainError("no_scopes", "A token without scopes can do nothing; name at least one, such as «read».")
    if life is not None and not timedelta(0) < life <= TOKEN_LIFE_MAX:
        raise DomainError("bad_expiry", "A token must expire in the future and within a year; choose another date.")
    with transaction.atomic():
        token, secret = ApiToken.objects.create(
            user=user, expiry=life, name=name, team=team, scopes=sorted({Scope(scope).value for scope in scopes})
        )
        data = {"token": token.token_key, "name": name, "user": user.get_username(), "scopes": token.scopes}
        note(team, "token.created", actor=actor, now=now, data=data)
    return token, secret


def revoke_api_token(*, token: ApiToken, actor: Actor, now: datetime, reason: str = "") -> None:
    """End a token at once: the next request that presents it is refused."""
    with transaction.atomic():
        gone, _ = ApiToken.objects.filter(pk=token.pk).delete()
        if gone:
            data = {"token": token.token_key, "name": token.name, "user": token.user.get_username()}
            note(token.team, "token.revoked", actor=actor, now=now, reason=reason, data=data)


def forget_idempotency_keys(*, now: datetime) -> int:
    """Delete stored answers older than a day; a repeat after that is a new request. Returns how many went."""
    gone, _ = IdempotencyKey.objects.filter(created_at__lt=now - IDEMPOTENCY_LIFE).delete()
    return gone
