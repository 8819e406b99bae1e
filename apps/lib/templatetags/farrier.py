"""How the console speaks: times, quantities, digests, states as word + shape + colour."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django import template
from django.http import HttpRequest
from django.template import Context
from django.urls import Resolver404, resolve, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from apps.lib.shapes import ICONS, STATES

register = template.Library()

LABEL_CHARS = 64
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")


def spoken(seconds: float) -> str:
    """Return «3 min ago» for a positive number of seconds, «in 3 min» for a negative one (static/js says it alike)."""
    size = abs(seconds)
    if size < 5:
        return "just now"
    text = duration(size)
    return f"{text} ago" if seconds >= 0 else f"in {text}"


@register.filter
def duration(seconds: float | None) -> str:
    """Return a length of time in its largest unit, with minutes beside hours below ten: «3 h 48 min»."""
    if seconds is None:
        return "–"
    size = int(seconds)
    length, name = next(((length, name) for length, name in _UNITS if size >= length), (1, "s"))
    text = f"{size // length} {name}"
    if name == "h" and size < 36_000 and size % 3_600 // 60:
        text += f" {size % 3_600 // 60} min"
    return text


@register.filter
def between(start: datetime | None, end: datetime | None) -> str:
    """Return how long it took from `start` to `end`."""
    return duration((end - start).total_seconds()) if start and end else ""


@register.simple_tag
def ago(moment: datetime | None, absent: str = "never") -> SafeString | str:
    """Return a `<time>` that says how long ago, with the exact UTC time in its title."""
    if moment is None:
        return absent
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        moment.strftime("%Y-%m-%d %H:%M:%S UTC"),
        spoken((timezone.now() - moment).total_seconds()),
    )


@register.simple_tag
def utc(moment: datetime | None) -> SafeString | str:
    """Return a `<time>` with the exact time, for tables that are read as records."""
    if moment is None:
        return "–"
    return format_html(
        '<time data-exact datetime="{}">{}</time>',
        moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        moment.strftime("%Y-%m-%d %H:%M:%S"),
    )


@register.filter
def size(count: int | None) -> str:
    """Return a number of bytes in SI units: «23.1 MB»."""
    if count is None:
        return "–"
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(_SIZES) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_SIZES[unit]}" if unit == 0 or value >= 100 else f"{value:.1f} {_SIZES[unit]}"


@register.filter
def whole(count: int | None) -> str:
    """Return a count with thousands set apart: «8,214»."""
    return "–" if count is None else f"{count:,}"


@register.filter
def quantity(value: float | None, unit: str = "") -> str:
    """Return a measured value with its unit; shares are said in percent, unitless values with three decimals."""
    if value is None:
        return "–"
    if unit in ("share", "%"):
        percent = value * 100
        return f"{percent:.0f} %" if percent == round(percent) else f"{percent:.2f} %"
    if unit == "":
        return f"{value:.4f}" if 0.9 <= abs(value) < 1 else f"{value:.3f}"
    return f"{value:.0f} {unit}" if abs(value) >= 100 else f"{value:.1f} {unit}"


@register.filter
def short(digest: str | None) -> str:
    """Return a digest as people compare it: «9f3a…c21»."""
    if not digest:
        return "–"
    return digest if len(digest) <= 12 else f"{digest[:4]}…{digest[-3:]}"


@register.filter
def short_label(label: str) -> str:
    """Return an object's label, shortened where it is a digest or as good as one."""
    if len(label) < LABEL_CHARS:
        return label
    return short(label) if " " not in label else f"{label[: LABEL_CHARS - 1]}…"


@register.simple_tag
def digest(value: str | None) -> SafeString | str:
    """Return a short digest that shows the whole on hover and copies it on a click."""
    if not value:
        return "–"
    return format_html('<code class="mono" title="{}" data-copy="{}">{}</code>', value, value, short(value))


@register.simple_tag
def icon(name: str) -> SafeString:
    """Return one of our shapes as inline SVG, hidden from screen readers: a word always stands beside it."""
    body = mark_safe(ICONS[name])  # noqa: S308 our own constants
    return format_html('<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">{}</svg>', body)


@register.simple_tag
def state(value: str, word: str = "") -> SafeString:
    """Return a state as shape + word in its colour; `word` replaces the usual one."""
    shape, tone, usual = STATES.get(value, ("circle", "mut", value.replace("_", " ")))
    return format_html('<span class="st {}">{}{}</span>', tone, icon(shape), word or usual)


@register.simple_tag
def state_icon(value: str) -> SafeString:
    """Return the shape of a state alone, where the word follows in a sentence."""
    return icon(STATES.get(value, ("circle", "", ""))[0])


@register.filter
def tone(value: str) -> str:
    """Return the colour class of a state."""
    return STATES.get(value, ("circle", "mut", ""))[1]


@register.simple_tag(takes_context=True)
def heading(context: Context, name: str, text: str, numeric: str = "", extra: str = "") -> SafeString:
    """Return a sortable column head: a link that orders by `name`, and the other way round at the second click."""
    request: HttpRequest = context["request"]
    current = str(request.GET.get("sort") or context.get("sort_default", ""))
    falling = current == f"-{name}"
    active = current.removeprefix("-") == name
    href = _here(request, sort=name if falling or not active else f"-{name}", page=None)
    aria = format_html(' aria-sort="{}"', "descending" if falling else "ascending") if active else ""
    arrow = (" ↓" if falling else " ↑") if active else ""
    classes = " ".join(part for part in ("r" if numeric else "", extra) if part)
    return format_html(
        '<th scope="col" class="{}"{}><a href="{}" hx-get="{}" hx-target="#results" hx-push-url="true">{}{}</a></th>',
        classes,
        aria,
        href,
        href,
        text,
        arrow,
    )


@register.simple_tag(takes_context=True)
def poll(context: Context, part: str, seconds: int) -> SafeString:
    """Return the element that asks for this part again every few seconds; it stands in the part that it renews.

    So it always asks for what the part shows now, also after a filter or a sort has changed the page's address.
    """
    return format_html(
        '<div hx-get="{}" hx-target="#{}" hx-trigger="every {}s" hx-swap="innerMorph" hx-include="#{}-seen"></div>',
        _here(context["request"]),
        part,
        seconds,
        part,
    )


def _here(request: HttpRequest, **changes: str | None) -> str:
    """Return the page's address with parts of its query changed (None: taken out); what polls add is left out."""
    query = request.GET.copy()
    for name, value in {"seen": None, **changes}.items():
        query.pop(name, None)
        if value is not None:
            query[name] = value
    return f"{request.path}?{query.urlencode()}" if query else request.path


@register.simple_tag(takes_context=True)
def page_link(context: Context, number: int, text: str) -> SafeString:
    """Return a link to another page of the same list, with the filters kept."""
    href = _here(context["request"], page=str(number))
    return format_html('<a href="{}" hx-get="{}" hx-target="#results" hx-push-url="true">{}</a>', href, href, text)


_VERBS = {
    "rollout.started": "Rollout asked for",
    "storedblob.stored": "Artifact stored",
    "rollout.stage_ready": "Nodes are ready",
    "rollout.window_extended": "Window extended",
    "rollout.node_excluded": "Node left out of the evidence",
    "rollout.node_included": "Node counts again",
    "join_token.created": "Join token made",
    "modelversion.published": "Version published",
}


@register.filter
def verb(name: str, data: Mapping[str, Any] | None = None) -> str:
    """Return what happened as people say it: «rollout.rolled_back» → «Rollout rolled back»."""
    if name == "rollout.stage_started" and data and data.get("kind"):
        return f"{str(data['kind']).capitalize()} began"
    return _VERBS.get(name) or name.replace(".", " ").replace("_", " ").capitalize()


@register.filter
def stages(plan: list[dict[str, Any]]) -> str:
    """Return a plan in one line: «shadow 10 % → canary 50 % → approval → full»."""
    said = []
    for stage in plan:
        share = stage.get("percent", stage.get("weight"))
        said.append(f"{stage.get('kind', '?')} {share} %" if share is not None else str(stage.get("kind", "?")))
    return " → ".join(said)


@register.simple_tag(takes_context=True)
def fragment(context: Context, name: str, *args: Any) -> SafeString:
    """Return the HTML of another app's view, by URL name: its matter on our page without importing it.

    The view runs with this page's request, so its own access rules hold; an answer other than 200 shows nothing.
    """
    return _inlined(context, reverse(name, args=args))


@register.simple_tag(takes_context=True)
def fragment_if_any(context: Context, folder: str, name: str) -> SafeString:
    """As `fragment`, by address: a matter that this installation has no page for shows nothing."""
    try:
        return _inlined(context, f"{folder}{name}")
    except Resolver404:
        return SafeString("")


def _inlined(context: Context, address: str) -> SafeString:
    request: HttpRequest = context["request"]
    match = resolve(address)
    response = match.func(request, *match.args, **match.kwargs)
    if response.status_code != 200:
        return SafeString("")
    return SafeString(response.content.decode())
