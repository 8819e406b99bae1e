"""Pages of alerts: the inbox, an alert, silences; and the fragment that a node's page shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from apps.access.actors import actor_of
from apps.access.models import Role
from apps.access.requests import SignedIn
from apps.access.selectors import role_in, working_team
from apps.audit import page_selectors as audit
from apps.lib.console import Failed, answer, is_htmx, page, revision_seen
from apps.lib.errors import DomainError, NotFound
from apps.lib.pages import page_of
from apps.observability import alert_selectors as reads
from apps.observability import alert_services as services
from apps.observability.alert_models import Alert, AlertState, Severity, Silence
from apps.observability.alert_page import alert_page, until_choices

USUAL_FOR_S = 300.0
JUDGED_WITHIN = timedelta(minutes=1)  # twelve ticks: later than that, no news is no good news
FILTERS = ("q", "state", "severity", "rule", "node")


@dataclass(frozen=True)
class Command:
    """What a person may do to an alert: the service, and what it says when done."""

    perform: Callable[..., Alert]
    done: str


COMMANDS = {
    "acknowledge": Command(services.acknowledge_alert, "is acknowledged; it is not repeated any more"),
    "unacknowledge": Command(services.unacknowledge_alert, "is handed back; it is repeated again"),
    "own": Command(services.own_alert, "is yours now"),
}


@page
def alerts(request: SignedIn) -> HttpResponse:
    """The inbox: what fires first, grouped by node."""
    wanted = {name: request.GET.get(name, "").strip() for name in FILTERS}
    state = wanted["state"] or reads.OPEN
    rows = reads.narrowed(
        reads.alerts_for(request.user),
        state=state,
        severity=wanted["severity"],
        rule=wanted["rule"],
        node=wanted["node"],
        text=wanted["q"],
    )
    found = page_of(reads.by_urgency(rows), request)
    roles = {team: role_in(request.user, team) for team in {alert.team_id for alert in found}}
    judged_at = reads.judged_at(request.user)
    context = wanted | {
        "page": found,
        "rows": [(alert, _may(roles[alert.team_id])) for alert in found],
        "states": [(reads.OPEN, "Open"), *AlertState.choices, (reads.ALL, "Every state")],
        "state": state,
        "severities": Severity.choices,
        "rules": reads.rules().exclude(slug="heartbeat"),
        "filtered": any(wanted.values()),
        "here": _here(request),
        "judged_at": judged_at,
        "late": judged_at is None or timezone.now() - judged_at > JUDGED_WITHIN,
        "for_s": settings.FARRIER.alert_for_s,
        "shortened": settings.FARRIER.alert_for_s < USUAL_FOR_S,
    }
    return answer(request, "observability/alerts.html", context, parts=("results",))


def _here(request: SignedIn) -> str:
    """Return the inbox's address with its filters, for what comes back to it."""
    query = request.GET.copy()
    query.pop("seen", None)
    return f"{request.path}?{query.urlencode()}" if query else request.path


def _may(role: Role | None) -> bool:
    return role is not None and role.rank >= Role.OPERATOR.rank


@page
def alert(request: SignedIn, pk: UUID) -> HttpResponse:
    """One alert: its band, what it means, its GPUs, what was done."""
    return _alert(request, pk)


def _alert(request: SignedIn, pk: UUID, failed: Failed | None = None) -> HttpResponse:
    found = reads.get_alert(request.user, pk)
    now = timezone.now()
    context = {
        "alert": found,
        "shown": alert_page(request.user, found, request.GET.get("range", ""), now),
        "events": audit.about(found),
        "may": _may(role_in(request.user, found.team_id)),
        "over": found.state == AlertState.RESOLVED,
        "held_s": ((found.resolved_at or now) - (found.firing_at or found.pending_at)).total_seconds(),
        "matchers": {"rule": found.rule_id, found.entity_kind: found.entity_name},
        "untils": until_choices(now),
        "failed": failed,
        "for_s": settings.FARRIER.alert_for_s if found.rule.for_s is None else found.rule.for_s,
        "shortened": found.rule.for_s is None and settings.FARRIER.alert_for_s < USUAL_FOR_S,
    }
    return answer(
        request, "observability/alert.html", context, parts=("live",), status=failed.status if failed else 200
    )


@page
@require_POST
def act(request: SignedIn, pk: UUID, action: str) -> HttpResponse:
    """Acknowledge, hand back or take over; then back to where it was asked."""
    command = COMMANDS.get(action)
    if command is None:
        raise NotFound("unknown_action", f"An alert can't be asked to «{action}»; its page lists what can be done.")
    found = reads.get_alert(request.user, pk)
    try:
        command.perform(
            found,
            actor=actor_of(request),
            now=timezone.now(),
            note=request.POST.get("note", ""),
            expected_revision=revision_seen(request),
        )
    except DomainError as error:
        return _alert(request, pk, Failed.of(action, error, request.POST))
    if not is_htmx(request):
        messages.success(request, f"The alert {found} {command.done}.")
    return redirect(_back(request, found))


def _back(request: SignedIn, found: Alert) -> str:
    asked = request.POST.get("next", "")
    if asked and url_has_allowed_host_and_scheme(asked, allowed_hosts={request.get_host()}):
        return asked
    return f"/alerts/{found.pk}/"


@page
def silences(request: SignedIn) -> HttpResponse:
    """What is muted, by whom, why and until when."""
    return _silences(request)


def _silences(request: SignedIn, failed: Failed | None = None) -> HttpResponse:
    over = request.GET.get("state") == "over"
    now = timezone.now()
    found = page_of(reads.in_force(reads.silences_for(request.user), now, over=over), request)
    roles = {team: role_in(request.user, team) for team in {row.team_id for row in found}}
    rows = [(row, _may(roles[row.team_id])) for row in found]
    context = {"page": found, "rows": rows, "over": over, "failed": failed, "now": now}
    status = failed.status if failed else 200
    return answer(request, "observability/silences.html", context, parts=("results",), status=status)


@page
def new_silence(request: SignedIn) -> HttpResponse:
    """The form of a new silence; the address may fill it in (`?rule=…&node=…`)."""
    if request.method == "POST":
        try:
            made = _silence(request)
        except DomainError as error:
            return _new_silence(request, Failed.of("silence", error, request.POST))
        messages.success(request, f"{made} is silenced until {made.expires_at:%Y-%m-%d %H:%M} UTC.")
        return redirect("silences")
    return _new_silence(request, None)


def _new_silence(request: SignedIn, failed: Failed | None) -> HttpResponse:
    typed = failed.typed if failed else request.GET
    context = {
        "matchers": {name: typed.get(name, "") for name in Silence.MATCHABLE if typed.get(name)},
        "names": Silence.MATCHABLE,
        "typed": typed,
        "untils": until_choices(timezone.now()),
        "failed": failed,
    }
    return answer(request, "observability/silence_new.html", context, status=failed.status if failed else 200)


def _silence(request: SignedIn) -> Silence:
    """Read the form: one field a matcher, the minutes, the reason."""
    minutes = request.POST.get("minutes", "")
    if not minutes.isdecimal() or len(minutes) > 6:
        raise DomainError("bad_expiry", "Choose how long it should be silent.", status=422)
    now = timezone.now()
    team = request.POST.get("team", "")
    return services.create_silence(
        team=working_team(request.user, team),
        matchers={name: value for name in Silence.MATCHABLE if (value := request.POST.get(name, "").strip())},
        reason=request.POST.get("reason", ""),
        expires_at=now + timedelta(minutes=int(minutes)),
        actor=actor_of(request),
        now=now,
    )


@page
@require_POST
def end_silence(request: SignedIn, pk: UUID) -> HttpResponse:
    """End a silence before its time, for the reason given."""
    found = reads.get_silence(request.user, pk)
    try:
        services.end_silence(found, actor=actor_of(request), reason=request.POST.get("reason", ""), now=timezone.now())
    except DomainError as error:
        return _silences(request, Failed.of(str(pk), error, request.POST))
    messages.success(request, f"The silence of {found} has ended.")
    return redirect("silences")


@page
def node_alerts(request: SignedIn, name: str) -> HttpResponse:
    """A node's alerts, as a fragment of its page."""
    context = {"alerts": reads.of_node(request.user, name), "name": name}
    return answer(request, "observability/node_alerts.html", context, parts=("alerts",))
