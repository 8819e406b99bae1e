"""Pages of the fleet: the grid and list, a node with its actions; and where a model runs, for the model's page."""

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
from apps.access.selectors import role_in
from apps.audit import page_selectors as audit
from apps.fleet import grid, selectors, services
from apps.fleet import page_selectors as reads
from apps.fleet.models import Node, NodePhase
from apps.lib.console import Failed, answer, ordering, page, revision_seen
from apps.lib.errors import DomainError, NotFound
from apps.lib.pages import page_of

SORTS = {
    "name": "name",
    "zone": "zone",
    "pool": "pool__slug",
    "phase": "phase",
    "seen": "last_seen_at",
    "runs": "served",
}


@dataclass(frozen=True)
class Action:
    """What a person may do to a node: its name on the button, what it does, from where it leads to which phase."""

    slug: str
    label: str
    effect: str
    to: NodePhase
    perform: Callable[..., None]
    role: Role = Role.OPERATOR
    harm: bool = False


ACTIONS = (
    Action("accept", "Accept", "Lets the node in: it gets a credential and may be given work.", NodePhase.ACCEPTED,
           services.accept_node),
    Action("reject", "Reject", "Turns the node away; it can be accepted later.", NodePhase.REJECTED,
           services.reject_node, harm=True),
    Action("uncordon", "Return to service", "The node takes new work again.", NodePhase.ACTIVE, services.uncordon_node),
    Action("cordon", "Cordon", "Serves what it has, gets nothing new, and is left out of evidence.",
           NodePhase.CORDONED, services.cordon_node),
    Action("drain", "Drain", "Takes everything off the node; what it should serve is kept for its return.",
           NodePhase.DRAINING, services.drain_node, harm=True),
    Action("quarantine", "Quarantine", "Locks the node out until a person accepts or bans it; what runs goes on.",
           NodePhase.QUARANTINED, services.quarantine_node, harm=True),
    Action("ban", "Ban for good", "Locks the node out for ever: its key can never enrol again.", NodePhase.BANNED,
           services.ban_node, Role.ADMIN, harm=True),
)  # fmt: skip


@page
def fleet(request: SignedIn) -> HttpResponse:
    """The whole fleet as a grid by zone, or as a list that filters and sorts."""
    wanted = {name: request.GET.get(name, "").strip() for name in ("q", "phase", "zone", "pool")}
    as_list = request.GET.get("view") == "list" or any(wanted.values())
    context = wanted | reads.choices(request.user) | {"as_list": as_list, "phases": NodePhase.choices}
    now = timezone.now()
    context["grid"] = grid.totals(request.user, now) if as_list else grid.grid(request.user, now)
    if as_list:
        rows = reads.node_list(
            request.user, search=wanted["q"], phase=wanted["phase"], zone=wanted["zone"], pool=wanted["pool"]
        )
        context["page"] = page_of(rows.order_by(ordering(request, SORTS, "name"), "name"), request)
        context["sort_default"] = "name"
    return answer(request, "fleet/fleet.html", context, parts=("results",))


@page
def enrol(request: SignedIn) -> HttpResponse:
    """How a host becomes a node: the form that makes a single-use join token, and those that are still unused."""
    if request.method != "POST":
        return _enrol(request)
    try:
        token = services.create_join_token(
            pool=selectors.get_pool(request.user, request.POST.get("pool", "")),
            actor=actor_of(request),
            now=timezone.now(),
            node_name=request.POST.get("name", "").strip(),
        )
    except DomainError as error:
        return _enrol(request, failed=Failed.of("enrol", error, request.POST))
    return _enrol(request, token=token)


def _enrol(request: SignedIn, *, failed: Failed | None = None, token: str = "") -> HttpResponse:
    context = {
        "pools": selectors.pools(request.user),
        "unused": selectors.join_tokens(request.user, timezone.now()),
        "failed": failed,
        "token": token,
        "minutes": int(services.JOIN_TOKEN_LIFE.total_seconds() // 60),
        "server": request.build_absolute_uri("/").rstrip("/"),
    }
    response = answer(request, "fleet/enrol.html", context, status=failed.status if failed else 200)
    response.headers["Cache-Control"] = "no-store"  # the token stands on it
    return response


@page
def node(request: SignedIn, name: str) -> HttpResponse:
    """A node: phase, conditions, what it should serve beside what it says, refusals, credential, actions."""
    return _node(request, name)


def _node(request: SignedIn, name: str, failed: Failed | None = None) -> HttpResponse:
    found = reads.get_node(request.user, name)
    rows, strays = reads.deployments(found)
    gpus = list(found.gpus.order_by("index"))
    context = {
        "node": found,
        "rows": rows,
        "strays": strays,
        "conditions": found.conditions.order_by("type"),
        "refusals": found.refusals.order_by("-at")[:20],
        "gpus": gpus,
        "hardware": reads.hardware(found),
        "simulated": any(gpu.simulated for gpu in gpus),
        "key": bytes(found.public_key).hex(),
        "silent": selectors.overdue(found, timezone.now()),
        "actions": _offered(request, found),
        "events": audit.about(found),
        "failed": failed,
    }
    return answer(request, "fleet/node.html", context, parts=("live",), status=failed.status if failed else 200)


def _offered(request: SignedIn, found: Node) -> list[tuple[Action, str]]:
    """Return the actions that the node's phase allows, each with the reason why this person may not, or nothing."""
    held = role_in(request.user, found.team_id)
    offered = []
    for action in ACTIONS:
        if action.to not in Node.TRANSITIONS[NodePhase(found.phase)] or _same_move(action, found):
            continue
        denied = held is None or held.rank < action.role.rank
        why = f"Takes the role {action.role.label.lower()}; yours here is {held.label.lower() if held else 'none'}."
        offered.append((action, why if denied else ""))
    return offered


def _same_move(action: Action, found: Node) -> bool:
    """A node that was accepted becomes active by itself at its first poll: that is nobody's button."""
    return action.to == NodePhase.ACTIVE and found.phase == NodePhase.ACCEPTED


@page
@require_POST
def act(request: SignedIn, name: str, action: str) -> HttpResponse:
    """Do one of the actions to a node, for the reason given."""
    chosen = next((known for known in ACTIONS if known.slug == action), None)
    if chosen is None:
        raise NotFound("unknown_action", f"A node can't be asked to «{action}»; its page lists what can be done.")
    found = reads.get_node(request.user, name)
    try:
        chosen.perform(
            found,
            actor=actor_of(request),
            reason=request.POST.get("reason", "").strip(),
            now=timezone.now(),
            expected_revision=revision_seen(request),
        )
    except DomainError as error:
        return _node(request, name, Failed.of(action, error, request.POST))
    messages.success(request, f"{found.name} is {NodePhase(found.phase).label.lower()}.")
    return redirect("node", name)


@page
def where_runs(request: SignedIn, model: UUID) -> HttpResponse:
    """Where a model's versions should run and what each node says, as a fragment."""
    return answer(request, "fleet/where_runs.html", {"rows": reads.where_runs(request.user, model)})
