"""The start page and what every page's frame shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from apps.access.models import Role, User
from apps.access.requests import SignedIn
from apps.audit import selectors as audit
from apps.fleet import grid
from apps.fleet import page_selectors as fleet
from apps.lib.console import answer, is_htmx, page
from apps.models import selectors as registry
from apps.observability import alert_selectors as alerts
from apps.rollouts import page_selectors as rollouts
from apps.rollouts.models import Phase

THEMES = ("light", "dark")
HAPPENED = 12  # events that the start page shows
NAV = (("Home", "home", "h"), ("Models", "models", "m"), ("Rollouts", "rollouts", "r"), ("Fleet", "fleet", "f"),
       ("Alerts", "alerts", "l"), ("Explore", "explore", "e"), ("Holds", "holds", "o"),
       ("Audit", "audit", "u"))  # fmt: skip


def shell(request: HttpRequest) -> dict[str, Any]:
    """Context of the frame around every page."""
    theme = request.COOKIES.get("theme", "")
    context: dict[str, Any] = {"path": request.get_full_path(), "theme": theme if theme in THEMES else ""}
    user = getattr(request, "user", None)
    if not isinstance(user, User) or is_htmx(request):
        return context
    known: dict[str, Any] | None = getattr(request, "farrier_shell", None)
    if known is None:  # a page with fragments renders several templates
        known = _frame(request, user)
        request.farrier_shell = known  # type: ignore[attr-defined]
    return context | known


def _frame(request: HttpRequest, user: User) -> dict[str, Any]:
    nav = [
        {"name": name, "url": reverse(url), "key": key, "current": _current(request.path, reverse(url))}
        for name, url, key in NAV
    ]
    roles = user.memberships.values_list("role", "team__slug")
    said = ", ".join(f"{role} in {team}" for role, team in roles) or ("superuser" if user.is_superuser else "")
    return {
        "nav": nav,
        "roles": said,
        "waiting_count": rollouts.waiting_count(user),
        "firing_count": alerts.firing_count(user),
    }


def _current(path: str, url: str) -> bool:
    return path == url if url == "/" else path.startswith(url)


@page
def home(request: SignedIn) -> HttpResponse:
    """What waits for this person, what runs, how the fleet is, what happened."""
    user = request.user
    roles = rollouts.roles_of(user)
    open_rows = rollouts.open_rollouts(user)
    decided = rollouts.decisions_on(open_rows)
    paused = [
        (row, rollouts.may_decide(user, row, roles, decided.get(row.pk, ())))
        for row in open_rows
        if row.phase == Phase.PAUSED
    ]
    waiting = [(row, may) for row, may in paused if may.allowed]
    pending = fleet.pending_nodes(user) if _may_accept(roles) else []
    events = audit.events_for(user)[:HAPPENED]
    context = {
        "waiting": waiting,
        "others": [(row, may) for row, may in paused if not may.allowed],
        "running": [row for row in open_rows if row.phase != Phase.PAUSED],
        "pending": pending,
        "yours": bool(waiting or pending),
        "grid": grid.at_home(user, timezone.now()),
        "events": events,
        "link_objects": True,
        "nothing_yet": not registry.models_for(user).exists(),
    }
    return answer(request, "home.html", context, parts=("live",))


def _may_accept(roles: Mapping[UUID, Role]) -> bool:
    return any(role.rank >= Role.OPERATOR.rank for role in roles.values())


@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Turn the theme round and go back; only pages without JavaScript come here."""
    back = request.POST.get("next", "/")
    if not url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}):
        back = "/"
    response = redirect(back)
    chosen = "light" if request.COOKIES.get("theme") == "dark" else "dark"
    response.set_cookie("theme", chosen, max_age=31_536_000, samesite="Lax")
    return response
