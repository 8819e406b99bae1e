"""Pages of the registry: models, a model with its versions, a version with its lineage."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from apps.audit import page_selectors as audit
from apps.lib.console import answer, ordering, page
from apps.lib.pages import page_of
from apps.models import page_selectors as registry

SORTS = {"name": "slug", "versions": "version_count", "published": "published_at", "task": "task"}


@page
def models(request: HttpRequest) -> HttpResponse:
    """The user's models."""
    search, task = request.GET.get("q", "").strip(), request.GET.get("task", "")
    rows = registry.models(request.user, search, task).order_by(ordering(request, SORTS, "name"), "slug")
    context = {
        "page": page_of(rows, request),
        "q": search,
        "task": task,
        "tasks": registry.tasks(request.user),
        "sort_default": "name",
    }
    return answer(request, "models/models.html", context, parts=("results",))


@page
def model(request: HttpRequest, slug: str) -> HttpResponse:
    """A model: its versions, its aliases and their history; where each version runs is the fleet's fragment."""
    found = registry.get_model(request.user, slug)
    context = {
        "model": found,
        "page": page_of(registry.versions(found), request),
        "moves": registry.alias_history(found)[:20],
    }
    return answer(request, "models/model.html", context, parts=("results",))


@page
def version(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """A version: lineage, artifact, signature, metrics, what differs from the one before."""
    found = registry.get_model(request.user, slug)
    this = registry.get_version(found, number)
    previous = registry.previous_version(this)
    context = {
        "model": found,
        "version": this,
        "artifacts": registry.artifacts(this),
        "previous": previous,
        "diff": registry.lineage_diff(previous, this) if previous else [],
        "parts": [(part, getattr(this, field), this.lineage_inputs.get(part, {})) for part, field in registry.PART_FIELDS.items()],
        "events": audit.about(this),
    }
    return answer(request, "models/version.html", context)
