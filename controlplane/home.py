"""The start page and what every page's frame shows."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from apps.access.models import User
from apps.lib.console import answer, is_htmx, page
from apps.rollouts import page_selectors as rollouts

THEMES = ("light", "dark")
NAV = (("Home", "home", "h"), ("Models", "models", "m"), ("Rollouts", "rollouts", "r"), ("Fleet", "fleet", "f"),
       ("Holds", "holds", "o"), ("Audit", "audit", "u"))  # fmt: skip


def shell(request: HttpRequest) -> dict[str, Any]:
    """Context of the frame around every page."""
    theme = request.COOKIES.get("theme", "")
    context: dict[str, Any] = {"path": request.get_full_path(), "theme": theme if theme in THEMES else ""}
    user = getattr(request, "user", None)
    if not isinstance(user, User) or is_htmx(request):
        return context
    nav = [
        {"name": name, "url": reverse(url), "key": key, "current": _current(request.path, reverse(url))}
        for name, url, key in NAV
    ]
    roles = user.memberships.values_list("role", "team__slug")
    said = ", ".join(f"{role} in {team}" for role, team in roles) or ("superuser" if user.is_superuser else "")
    return context | {"nav": nav, "roles": said, "waiting_count": rollouts.waiting_count(user)}


def _current(path: str, url: str) -> bool:
    return path == url if url == "/" else path.startswith(url)


@page
def home(request: HttpRequest) -> HttpResponse:
    """What waits for this person, what runs, how the fleet is, what happened."""
    user = request.user
    open_rows = rollouts.open_rollouts(user)
    roles = rollouts.roles_of(user)
    waiting = [(row, rollouts.may_decide(user, row, roles)) for row in open_rows if row.pause_reason]
    context = {
        "waiting": waiting,
        "running": [row for row in open_rows if not row.pause_reason],
    }
    return answer(request, "home.html", context, parts=("live",))


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
