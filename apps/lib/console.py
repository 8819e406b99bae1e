"""What every page of the console shares: sign-in, parts for htmx, polls that answer 204, errors that keep the form."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec
from urllib.parse import urlencode

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, QueryDict
from django.shortcuts import redirect, render, resolve_url
from django.template.loader import render_to_string
from django.utils.html import format_html

from apps.lib.errors import DomainError
from apps.lib.problems import problem

P = ParamSpec("P")

# What differs between two renderings of the same state: spoken times and the masked CSRF token.
_FLEETING = re.compile(r"(<time[^>]*>)[^<]*|name=\"csrfmiddlewaretoken\" value=\"[^\"]*\"")


@dataclass(frozen=True)
class Failed:
    """A form that was refused: which one, why, and what had been typed into it."""

    action: str
    sentence: str
    code: str
    status: int
    typed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, action: str, error: DomainError, typed: QueryDict) -> Failed:
        return cls(
            action, error.sentence, error.code, error.status, {name: str(value) for name, value in typed.items()}
        )


def page(view: Callable[Concatenate[Any, P], HttpResponse]) -> Callable[Concatenate[HttpRequest, P], HttpResponse]:
    """Wrap a page: asks for sign-in, and turns a DomainError that the view let through into an error page."""

    @wraps(view)
    def wrapped(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if not request.user.is_authenticated:
            return _to_sign_in(request)
        try:
            return view(request, *args, **kwargs)
        except DomainError as error:
            if is_htmx(request):
                return _reload(error.status)  # what was polled is gone: the whole page says so
            return render(request, "error.html", {"error": error}, status=error.status)

    return wrapped


def data(
    view: Callable[Concatenate[Any, P], HttpResponseBase],
) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
    """Wrap what pages fetch by themselves (points of a chart): as `page`, but whoever asks gets problem JSON."""

    @wraps(view)
    def wrapped(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return problem(401, "not_signed_in", "Sign in first; reload the page to be asked for it.")
        try:
            return view(request, *args, **kwargs)
        except DomainError as error:
            return problem(error.status, error.code, error.sentence)

    return wrapped


def _to_sign_in(request: HttpRequest) -> HttpResponse:
    if is_htmx(request):
        return _reload(401)  # the sign-in page must not be painted into a fragment
    query = urlencode({"next": request.get_full_path()}, safe="/")
    return redirect(f"{resolve_url(settings.LOGIN_URL)}?{query}")


def _reload(status: int) -> HttpResponse:
    return HttpResponse(status=status, headers={"HX-Refresh": "true"})


def is_htmx(request: HttpRequest) -> bool:
    """Return whether htmx sent the request."""
    return bool(getattr(request, "htmx", False))


def answer(
    request: HttpRequest,
    template: str,
    context: Mapping[str, Any],
    *,
    parts: Collection[str] = (),
    status: int = 200,
) -> HttpResponse:
    """Answer with the whole page, or with the one of `parts` that htmx targets (by the element's id).

    A part carries a fingerprint of itself, which the next poll sends back as `seen`: the same state answers 204.
    """
    part = _wanted_part(request, parts)
    if part is None:
        return render(request, template, dict(context), status=status)
    html = render_to_string(f"{template}#{part}", dict(context), request)
    seen = hashlib.sha256(_FLEETING.sub(r"\1", html).encode()).hexdigest()[:16]
    if request.GET.get("seen") == seen:
        return HttpResponse(status=204)
    mark = format_html('<input type="hidden" id="{}-seen" name="seen" value="{}">', part, seen)
    return HttpResponse(html + mark, status=status)


def _wanted_part(request: HttpRequest, parts: Collection[str]) -> str | None:
    if not is_htmx(request):
        return None
    target = (request.headers.get("HX-Target") or "").rpartition("#")[2]  # htmx names its target «div#live»
    return target if target in parts else None


def revision_seen(request: HttpRequest) -> int | None:
    """Return the revision that the sender of a form had before them, so that an outdated page decides nothing."""
    sent = request.POST.get("revision", "")
    if not sent:
        return None
    if not sent.isdecimal():
        raise DomainError("bad_revision", f"«{sent[:20]}» is no revision; reload the page and try again.")
    return int(sent)


def ordering(request: HttpRequest, allowed: Mapping[str, str], default: str) -> str:
    """Return the column to order by, from `?sort=name` or `?sort=-name`; what `allowed` lacks gives the default."""
    wanted = request.GET.get("sort", default)
    name = wanted.removeprefix("-")
    if name not in allowed:
        wanted, name = default, default.removeprefix("-")
    return ("-" if wanted.startswith("-") else "") + allowed[name]
