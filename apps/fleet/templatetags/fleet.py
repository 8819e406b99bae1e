"""The fleet's grid, written by hand: ten thousand cells are too many for a template loop."""

from __future__ import annotations

from html import escape  # Django's own takes longer than all else of ten thousand cells
from itertools import groupby

from django import template
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe

from apps.fleet.grid import HEALTH, Cell, Zone

register = template.Library()
FEW = 64  # up to so many cells have room for their nodes' names


@register.simple_tag
def cells(zone: Zone) -> SafeString:
    """Return a zone's cells as links to their nodes: letter, colour and a title that says both in words.

    A small zone shows each node by name with its cells; a large one is a dense field.
    """
    base = reverse("node", args=("NODE",))
    if len(zone.cells) > FEW:
        field = "".join(_cell(cell, base) for cell in zone.cells)
        return mark_safe(f'<div class="cells dense">{field}</div>')  # noqa: S308 escaped in _cell
    hosts = []
    for node, group in groupby(zone.cells, key=lambda cell: cell.node):
        name = escape(node)
        field = "".join(_cell(cell, base) for cell in group)
        hosts.append(f'<li><a href="{base.replace("NODE", name)}">{name}</a><div class="cells">{field}</div></li>')
    return mark_safe(f'<ul class="hosts">{"".join(hosts)}</ul>')  # noqa: S308 escaped above


def _cell(cell: Cell, base: str) -> str:
    letter, kind, word = HEALTH[cell.health]
    name = escape(cell.node)
    gpu = "" if cell.gpu is None else f" GPU {cell.gpu}"
    said = f"{name}{gpu}: {word}{', simulated' if cell.simulated else ''}"
    look = f' class="{kind}"' if kind else ""
    # without a letter the title is the link's name; ten thousand cells have no room to say it twice
    spoken = f' aria-label="{said}"' if letter else ""
    return f'<a href="{base.replace("NODE", name)}"{look} title="{said}"{spoken}>{letter}</a>'
