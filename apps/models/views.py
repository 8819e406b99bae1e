"""Pages of the registry: models, a model with its versions, a version with its lineage."""

from __future__ import annotations

from django.http import HttpResponse

from apps.access.requests import SignedIn
from apps.audit import page_selectors as audit
from apps.lib.console import answer, ordering, page
from apps.lib.pages import page_of
from apps.models import page_selectors as reads
from apps.models import selectors

SORTS = {"name": "slug", "versions": "published", "published": "published_at", "task": "task"}


@page
def models(request: SignedIn) -> HttpResponse:
    """The user's models."""
    search, task = request.GET.get("q", "").strip(), request.GET.get("task", "")
    rows = reads.models(request.user, search, task).order_by(ordering(request, SORTS, "name"), "slug")
    context = {
        "page": page_of(rows, request),
        "q": search,
        "task": task,
        "tasks": reads.tasks(request.user),
        "sort_default": "name",
    }
    return answer(request, "models/models.html", context, parts=("results",))


@page
def model(request: SignedIn, slug: str) -> HttpResponse:
    """A model: its versions, its aliases and their history; where each version runs is the fleet's fragment."""
    found = selectors.get_model(request.user, slug)
    context = {
        "model": found,
        "page": page_of(reads.versions(found), request),
        "moves": reads.alias_moves(found)[:20],
    }
    return answer(request, "models/model.html", context, parts=("results",))


@page
def version(request: SignedIn, slug: str, number: int) -> HttpResponse:
    """A version: lineage, artifact, signature, metrics, what differs from the one before."""
    this = selectors.get_version(request.user, slug, number)
    previous = reads.previous_version(this)
    parts = [
        (part, getattr(this, field), this.lineage_inputs.get(part, {})) for part, field in reads.PART_FIELDS.items()
    ]
    context = {
        "model": this.model,
        "version": this,
        "artifacts": reads.artifacts(this),
        "previous": previous,
        "diff": reads.lineage_diff(previous, this) if previous else [],
        "parts": parts,
        "events": audit.about(this),
    }
    return answer(request, "models/version.html", context)
