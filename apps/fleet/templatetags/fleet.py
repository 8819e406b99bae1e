"""The fleet's grid, written by hand: ten thousand cells are too many for a template loop."""

from __future__ import annotations

from django import template
from django.urls import reverse
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from apps.fleet.page_selectors import Zone

register = template.Library()
FEW = 24  # up to so many cells have room for their names


@register.simple_tag
def cells(zone: Zone) -> SafeString:
    """Return a zone's cells as links to their nodes: letter, colour and a title that says both in words."""
    big = len(zone.cells) <= FEW
    base = reverse("node", args=("NODE",))
    links = []
    for cell in zone.cells:
        name = escape(cell.node)
        gpu = "" if cell.gpu is None else f" GPU {cell.gpu}"
        said = f"{name}{gpu}: {cell.word}{', simulated' if cell.simulated else ''}"
        text = f"{name}{gpu} {cell.letter}" if big else cell.letter
        links.append(
            f'<a href="{base.replace("NODE", name)}" class="{cell.kind}" title="{said}" aria-label="{said}">{text}</a>'
        )
    return mark_safe(f'<div class="cells{" big" if big else ""}">{"".join(links)}</div>')  # noqa: S308 escaped above
