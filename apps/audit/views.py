"""The audit page: every event, filterable, with the state of its seal."""

from __future__ import annotations

from django.http import HttpResponse
from django.utils import timezone
from django.utils.dateparse import parse_date

from apps.access.requests import SignedIn
from apps.audit import page_selectors as log
from apps.audit.models import ActorKind
from apps.lib.console import answer, page
from apps.lib.pages import page_of


@page
def audit(request: SignedIn) -> HttpResponse:
    """Events of the user's teams."""
    wanted = {name: request.GET.get(name, "").strip() for name in ("q", "kind", "object", "since")}
    try:
        since = parse_date(wanted["since"])
    except ValueError:  # well formed, but no such day
        since = None
    rows = log.filtered(request.user, text=wanted["q"], kind=wanted["kind"], object_type=wanted["object"], since=since)
    found = page_of(rows, request)
    context = wanted | {
        "page": found,
        "rows": [(event, log.address(event)) for event in found],
        "kinds": ActorKind.choices,
        "objects": log.object_types(request.user),
        "seals": log.seal_state(timezone.now()),
    }
    return answer(request, "audit/audit.html", context, parts=("results",))
