"""Pages of rollouts: list, the evidence page with its decisions, the form of a new one, holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_POST

from apps.access.actors import actor_of
from apps.access.models import Role
from apps.access.requests import SignedIn
from apps.audit import page_selectors as audit
from apps.lib.console import Failed, answer, ordering, page, revision_seen
from apps.lib.errors import DomainError, NotFound
from apps.lib.pages import page_of
from apps.rollouts import evidence_page as evidence
from apps.rollouts import page_selectors as reads
from apps.rollouts import services
from apps.rollouts.models import Phase, Rollout

SORTS = {"number": "number", "model": "model__slug", "phase": "phase", "asked": "created_at", "ended": "finished_at"}


@page
def rollouts(request: SignedIn) -> HttpResponse:
    """The user's rollouts."""
    wanted = {name: request.GET.get(name, "").strip() for name in ("q", "phase", "model", "pool")}
    rows = reads.rollout_list(
        request.user, search=wanted["q"], phase=wanted["phase"], model=wanted["model"], pool=wanted["pool"]
    )
    context = (
        wanted
        | reads.choices(request.user)
        | {
            "page": page_of(rows.order_by(ordering(request, SORTS, "-number"), "-number"), request),
            "phases": [(reads.OPEN, "Open"), *Phase.choices],
            "sort_default": "-number",
        }
    )
    return answer(request, "rollouts/rollouts.html", context, parts=("results",))


@page
def rollout(request: SignedIn, pk: UUID) -> HttpResponse:
    """The evidence page: what was seen, what changes, where, and the decision."""
    return _rollout(request, pk)


def _rollout(request: SignedIn, pk: UUID, failed: Failed | None = None) -> HttpResponse:
    found = evidence.get_rollout(request.user, pk)
    shown = evidence.evidence_page(found, request.GET.get("stage"), timezone.now())
    roles = reads.roles_of(request.user)
    decided = [
        row for row in shown.approvals if any(step.stage == row.stage and step.kind == "now" for step in shown.steps)
    ]
    context = {
        "rollout": found,
        "shown": shown,
        "waits": found.phase == Phase.PAUSED and found.pause_reason in reads.DECIDABLE,
        "over": found.phase in Rollout.TERMINAL,
        "may_decide": reads.may_decide(request.user, found, roles, decided),
        "may_operate": reads.may_operate(found, roles),
        "commands": [command for command in COMMANDS.values() if _fits(command, found)],
        "events": audit.about(found, *(step.stage for step in shown.steps)),
        "failed": failed,
    }
    return answer(request, "rollouts/rollout.html", context, parts=("live",), status=failed.status if failed else 200)


@dataclass(frozen=True)
class Command:
    """What a person may do to a rollout: the service, what it says when done, and in which phases it is offered."""

    slug: str
    label: str
    effect: str
    perform: Callable[..., object]
    done: str
    phases: frozenset[str]
    harm: bool = False


_MOVING = frozenset({Phase.PENDING, Phase.PROGRESSING})
_ABORTABLE = frozenset({Phase.PENDING, Phase.PROGRESSING, Phase.PAUSED, Phase.PROMOTING, Phase.ROLLING_BACK})
COMMANDS = {
    command.slug: command
    for command in (
        Command("pause", "Pause", "Stops before the next stage. The candidate keeps its share, automatic rollback "
                "stays armed.", services.pause_rollout, "is paused", frozenset({Phase.PROGRESSING})),
        Command("resume", "Resume", "Goes on where it was paused.", services.resume_rollout, "goes on",
                frozenset({Phase.PAUSED})),
        Command("abort", "Abort", "Returns every node to what it served before.", services.abort_rollout,
                "is being aborted", _ABORTABLE, harm=True),
    )
}  # fmt: skip
DECISIONS = {
    "approve": Command("approve", "Approve", "", services.approve_rollout, "is approved", frozenset()),
    "reject": Command("reject", "Reject", "", services.reject_rollout, "is rejected and rolls back", frozenset()),
}


def _fits(command: Command, found: Rollout) -> bool:
    if command.slug == "resume" and found.pause_reason in reads.DECIDABLE:
        return False  # what waits for a decision is not resumed past it
    return found.phase in command.phases


@page
@require_POST
def act(request: SignedIn, pk: UUID, action: str) -> HttpResponse:
    """Approve, reject, pause, resume or abort, for the reason given."""
    command = (COMMANDS | DECISIONS).get(action)
    if command is None:
        raise NotFound("unknown_action", f"A rollout can't be asked to «{action}»; its page lists what can be done.")
    found = evidence.get_rollout(request.user, pk)
    try:
        command.perform(
            found,
            actor=actor_of(request),
            reason=_reason(request, command.label.lower()),
            now=timezone.now(),
            expected_revision=revision_seen(request),
        )
    except DomainError as error:
        return _rollout(request, pk, Failed.of(action, error, request.POST))
    messages.success(request, f"Rollout {found} {command.done}.")
    return redirect("rollout", pk)


def _reason(request: SignedIn, what: str) -> str:
    reason = request.POST.get("reason", "").strip()
    if not reason:
        raise DomainError("reason_missing", f"Say why you {what}: the reason goes into the audit log.", status=422)
    return reason


@page
def new_rollout(request: SignedIn) -> HttpResponse:
    """The form that starts a rollout."""
    if request.method == "POST":
        try:
            started = _start(request)
        except DomainError as error:
            return _new_rollout(request, Failed.of("start", error, request.POST))
        messages.success(request, f"Rollout {started} is on its way.")
        return redirect("rollout", started.pk)
    return _new_rollout(request, None)


def _new_rollout(request: SignedIn, failed: Failed | None) -> HttpResponse:
    offer = reads.offer(request.user)
    typed = failed.typed if failed else request.GET
    roles = reads.roles_of(request.user)
    allowed = any(role.rank >= Role.OPERATOR.rank for role in roles.values())
    context = {"offer": offer, "typed": typed, "failed": failed, "allowed": allowed}
    return answer(request, "rollouts/new.html", context, status=failed.status if failed else 200)


def _start(request: SignedIn) -> Rollout:
    offer = reads.offer(request.user)
    version = next((row for row in offer.versions if str(row.pk) == request.POST.get("version")), None)
    strategy = next((row for row in offer.strategies if row.slug == request.POST.get("strategy")), None)
    pool = next((row for row in offer.pools if row.slug == request.POST.get("pool")), None)
    if version is None or strategy is None or pool is None:
        raise DomainError("incomplete", "Choose a version, a strategy and a pool from the lists.", status=422)
    return services.start_rollout(
        model=version.model,
        version=version,
        strategy=strategy,
        pool=pool,
        actor=actor_of(request),
        reason=_reason(request, "start it"),
        now=timezone.now(),
    )


@page
def holds(request: SignedIn) -> HttpResponse:
    """Digests that must not be rolled out."""
    return _holds(request)


def _holds(request: SignedIn, failed: Failed | None = None) -> HttpResponse:
    lifted, search = request.GET.get("state") == "lifted", request.GET.get("q", "").strip()
    roles = reads.roles_of(request.user)
    found = page_of(reads.holds(request.user, lifted=lifted, search=search), request)
    rows = [(hold, reads.has_role(roles, hold.team_id, Role.APPROVER, "lifting a hold")) for hold in found]
    context = {"page": found, "rows": rows, "lifted": lifted, "q": search, "failed": failed}
    status = failed.status if failed else 200
    return answer(request, "rollouts/holds.html", context, parts=("results",), status=status)


@page
@require_POST
def lift(request: SignedIn, pk: UUID) -> HttpResponse:
    """Lift a hold, for the reason given."""
    hold = reads.get_hold(request.user, pk)
    try:
        reason = _reason(request, "lift the hold")
        services.lift_hold(hold, actor=actor_of(request), reason=reason, now=timezone.now())
    except DomainError as error:
        return _holds(request, Failed.of(str(pk), error, request.POST))
    messages.success(request, f"The hold on {hold.version} is lifted: it may be rolled out again.")
    return redirect("holds")


@page
def version_rollouts(request: SignedIn, version: UUID) -> HttpResponse:
    """A version's rollouts and holds, as a fragment of its page."""
    roles = reads.roles_of(request.user)
    held = [
        (hold, reads.has_role(roles, hold.team_id, Role.APPROVER, "lifting a hold"))
        for hold in reads.holds_of_version(request.user, version)
    ]
    context = {"rollouts": reads.of_version(request.user, version)[:20], "holds": held}
    return answer(request, "rollouts/version_rollouts.html", context)


@page
def node_rollouts(request: SignedIn, name: str) -> HttpResponse:
    """The open rollouts that a node takes part in, and whether its evidence counts, as a fragment of other pages."""
    context = {"participants": reads.open_participations(request.user, name)}
    return answer(request, "rollouts/node_rollouts.html", context)
