"""Who acts, and how the acts of this app reach the audit log, which lies above it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import models
from django.dispatch import Signal
from django.http import HttpRequest
from rest_framework.request import Request

from apps.access.models import ApiToken, User
from apps.lib.errors import Forbidden


class ActorKind(models.TextChoices):
    PERSON = "person", "Person"
    TOKEN = "token", "API token"
    NODE = "node", "Node"
    SYSTEM = "system", "System"


@dataclass(frozen=True)
class Actor:
    """Who acts: a person (by hand or by token), a node, or the system itself."""

    kind: ActorKind
    label: str
    user: User | None = None

    @classmethod
    def person(cls, user: User) -> Actor:
        return cls(ActorKind.PERSON, user.get_username(), user)

    @classmethod
    def token(cls, user: User, name: str) -> Actor:
        return cls(ActorKind.TOKEN, f"{user.get_username()} by token {name}", user)

    @classmethod
    def node(cls, name: str) -> Actor:
        return cls(ActorKind.NODE, name)


SYSTEM = Actor(ActorKind.SYSTEM, "farrier")


def user_of(request: HttpRequest | Request) -> User:
    """Return the signed-in user of a request. Raises Forbidden (401) when there is none."""
    if not isinstance(request.user, User):
        raise Forbidden("not_signed_in", "Nobody is signed in; sign in, or send an API token.", status=401)
    return request.user


def actor_of(request: HttpRequest | Request) -> Actor:
    """Return who sent a request, of a page or of the REST API. Raises Forbidden (401) when nobody is signed in."""
    user = user_of(request)
    token = getattr(request, "auth", None)
    if isinstance(token, ApiToken):
        return Actor.token(user, token.name)
    return Actor.person(user)


# apps.audit imports this app, so acts are handed up: its receiver inserts the event in the same transaction, and an
# error there undoes the act.
acted = Signal()


def note(
    obj: models.Model,
    verb: str,
    *,
    actor: Actor,
    now: datetime,
    reason: str = "",
    data: Mapping[str, Any] | None = None,
) -> None:
    """Have the audit log record that `actor` did `verb` to `obj`; call it in the transaction of the change."""
    acted.send(sender=type(obj), obj=obj, verb=verb, actor=actor, now=now, reason=reason, data=data)
