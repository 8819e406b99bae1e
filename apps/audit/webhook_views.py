"""Webhooks: who is told what happens, and what became of every message."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_POST

from apps.access.actors import actor_of
from apps.access.models import Role
from apps.access.requests import SignedIn
from apps.access.selectors import get_team, role_in, teams_for
from apps.audit import selectors, services
from apps.audit.outbox import MAX_ATTEMPTS
from apps.lib.console import Failed, answer, page
from apps.lib.errors import DomainError
from apps.lib.pages import page_of

# What a webhook can be told of; none chosen means all.
TOPICS = (
    "alert.firing", "alert.resolved", "alert.no_data", "alert.acknowledged", "alert.heartbeat", "rollout.started",
    "rollout.waiting_for_approval", "rollout.paused", "rollout.completed", "rollout.rolled_back", "rollout.aborted",
)  # fmt: skip


@page
def webhooks(request: SignedIn) -> HttpResponse:
    """The webhooks of the teams that the user is an admin of, and the form of a new one; its secret is shown once."""
    if request.method != "POST":
        return _webhooks(request)
    try:
        _, secret = services.create_webhook(
            team=get_team(request.user, request.POST.get("team", "")),
            url=request.POST.get("url", "").strip(),
            topics=[topic for topic in request.POST.getlist("topics") if topic in TOPICS],
            actor=actor_of(request),
            now=timezone.now(),
        )
    except DomainError as error:
        return _webhooks(request, failed=Failed.of("create", error, request.POST))
    return _webhooks(request, secret=secret)


def _webhooks(request: SignedIn, *, failed: Failed | None = None, secret: str = "") -> HttpResponse:
    context = {
        "hooks": selectors.with_counts(selectors.webhooks_for(request.user)),
        "teams": [team for team in teams_for(request.user) if role_in(request.user, team.pk) == Role.ADMIN],
        "topics": TOPICS,
        "chosen": request.POST.getlist("topics") if failed else [],
        "failed": failed,
        "secret": secret,
    }
    response = answer(request, "audit/webhooks.html", context, status=failed.status if failed else 200)
    response.headers["Cache-Control"] = "no-store"  # a new secret may stand on it
    return response


@page
def webhook(request: SignedIn, pk: UUID) -> HttpResponse:
    """One webhook's delivery log, newest first."""
    hook = selectors.get_webhook(request.user, str(pk))
    state = request.GET.get("state", "")
    context = {
        "hook": hook,
        "page": page_of(selectors.in_state(selectors.deliveries_of(hook), state), request),
        "state": state,
        "states": selectors.DELIVERY_STATES,
        "most": MAX_ATTEMPTS,
    }
    return answer(request, "audit/webhook.html", context, parts=("results",))


@page
@require_POST
def delete_webhook(request: SignedIn, pk: UUID) -> HttpResponse:
    """Stop telling it; what is still to be delivered goes with it."""
    hook = selectors.get_webhook(request.user, str(pk))
    services.delete_webhook(webhook=hook, actor=actor_of(request), now=timezone.now())
    messages.success(request, f"{hook.host} is not told any more.")
    return redirect("webhooks")


@page
@require_POST
def resend(request: SignedIn, pk: UUID, delivery: UUID) -> HttpResponse:
    """Try a message again that was given up."""
    hook = selectors.get_webhook(request.user, str(pk))
    services.resend(row=selectors.get_delivery(hook, delivery), actor=actor_of(request), now=timezone.now())
    messages.success(request, f"It is sent to {hook.host} again.")
    return redirect("webhook", pk)
