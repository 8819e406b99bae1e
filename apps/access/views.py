"""One's own API tokens: list, create, revoke."""

from __future__ import annotations

from datetime import timedelta

from django.contrib import messages
from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_POST

from apps.access import selectors, services
from apps.access.actors import actor_of
from apps.access.models import Scope
from apps.access.requests import SignedIn
from apps.lib.console import Failed, answer, page
from apps.lib.errors import DomainError

LIVES = {"30": "30 days", "90": "90 days", "366": "a year"}


@page
def tokens(request: SignedIn) -> HttpResponse:
    """The user's tokens, and the form that makes one; a new secret is shown once, on the answer itself."""
    if request.method != "POST":
        return _tokens(request)
    try:
        secret = _create(request)
    except DomainError as error:
        return _tokens(request, failed=Failed.of("create", error, request.POST))
    return _tokens(request, secret=secret)


def _create(request: SignedIn) -> str:
    typed: QueryDict = request.POST
    name = typed.get("name", "").strip()
    if not name:
        raise DomainError("no_name", "Give the token a name that says who or what will use it, such as «ci-main».")
    unknown = set(typed.getlist("scopes")) - set(Scope.values)
    if unknown:
        raise DomainError("unknown_scope", f"There is no scope {sorted(unknown)[0]}; choose from the list.")
    life = typed.get("life", "90")
    if life not in LIVES:
        raise DomainError("bad_expiry", "Choose one of the offered lifetimes.")
    _, secret = services.create_api_token(
        user=request.user,
        team=selectors.get_team(request.user, typed.get("team", "")),
        name=name,
        scopes=[Scope(scope) for scope in typed.getlist("scopes")],
        actor=actor_of(request),
        now=timezone.now(),
        life=timedelta(days=int(life)),
    )
    return secret


def _tokens(request: SignedIn, *, failed: Failed | None = None, secret: str = "") -> HttpResponse:
    context = {
        "tokens": selectors.tokens_of(request.user),
        "teams": selectors.teams_for(request.user),
        "scopes": Scope.choices,
        "chosen": request.POST.getlist("scopes") if failed else [Scope.READ.value],
        "lives": LIVES.items(),
        "failed": failed,
        "secret": secret,
    }
    response = answer(request, "access/tokens.html", context, status=failed.status if failed else 200)
    response.headers["Cache-Control"] = "no-store"  # a new secret may stand on it
    return response


@page
@require_POST
def revoke(request: SignedIn, key: str) -> HttpResponse:
    """End one of the user's own tokens."""
    token = selectors.get_token(request.user, key)
    reason = request.POST.get("reason", "").strip()
    services.revoke_api_token(token=token, actor=actor_of(request), now=timezone.now(), reason=reason)
    messages.success(request, f"The token {token.name} is revoked; whoever still uses it is refused from now on.")
    return redirect("tokens")
