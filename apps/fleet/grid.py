"""The fleet as a grid by zone: every GPU's health where they fit on a page, every node's where they don't.

Judged in SQL: eighty thousand GPUs would take longer to fetch than to judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from django.db import connection

from apps.access.models import User
from apps.access.selectors import teams_for
from apps.fleet.models import Condition, GpuHealth
from apps.fleet.selectors import OVERDUE_POLLS

GPUS_DRAWN = 2_000  # of more the grid shows each node by its worst GPU: a page must stay a page
GPUS_BESIDE = 300  # of more the zones stand below each other
NODES_AT_HOME = 500  # of more the start page shows each zone in one line

# What a cell says: letter, colour class, word. The first that holds is shown (sql/judged.sql has the same order).
HEALTH: dict[str, tuple[str, str, str]] = {
    "banned": ("B", "off", "banned"),
    "quarantined": ("Q", "off", "quarantined"),
    "rejected": ("R", "off", "rejected"),
    "lost": ("L", "off", "GPU lost"),
    "xid": ("X", "off", "Xid error"),
    "away": ("?", "away", "not heard from"),
    "hot": ("H", "ill", "hot"),
    "failed": ("f", "ill", "a deployment failed"),
    "pending": ("p", "idle", "waits to be accepted"),
    "cordoned": ("c", "warned", "cordoned"),
    "draining": ("d", "warned", "draining"),
    "throttled": ("t", "warned", "throttled"),
    "silent": ("n", "away", "no data of it"),
    "serving": ("", "", "serving"),
    "idle": ("·", "idle", "idle"),
}
WELL = ("serving", "idle")
RANKS = {str(health): rank for rank, health in enumerate(GpuHealth.values)}  # as sql/judged.sql counts them


class Cell(NamedTuple):
    """One GPU; or a node, by its worst GPU (`gpu` is None)."""

    node: str
    gpu: int | None
    health: str
    simulated: bool


@dataclass
class Zone:
    """A zone's nodes and GPUs, how many nodes are in each health, and its cells where they were asked for."""

    name: str
    nodes: int = 0
    gpus: int = 0
    simulated: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    cells: tuple[Cell, ...] = ()

    @property
    def well(self) -> int:
        return sum(self.counts[health] for health in WELL)

    @property
    def amiss(self) -> list[tuple[str, str, str, int]]:
        return [entry for key, entry in _entries(self.counts) if key not in WELL]


@dataclass(frozen=True)
class Grid:
    """The fleet by zone. `by_gpu`: each cell is a GPU (or a host without any), else a node."""

    zones: tuple[Zone, ...]
    by_gpu: bool
    legend: list[tuple[str, str, str, int]]  # (letter, colour class, word, cells), worst first

    @property
    def nodes(self) -> int:
        return sum(zone.nodes for zone in self.zones)

    @property
    def gpus(self) -> int:
        return sum(zone.gpus for zone in self.zones)

    @property
    def well(self) -> int:
        """Nodes that serve, or could."""
        return sum(zone.well for zone in self.zones)

    @property
    def simulated(self) -> bool:
        return any(zone.simulated for zone in self.zones)

    @property
    def drawn(self) -> bool:
        """Whether there are cells, not only counts."""
        return any(zone.cells for zone in self.zones)

    @property
    def large(self) -> bool:
        """Whether a zone takes the page's whole width, and what the letters mean stands above them all."""
        return max(self.nodes, self.gpus) > GPUS_BESIDE

    @property
    def poll_s(self) -> int:
        """How often a page should look again: a large grid is a large answer."""
        return 5 if self.nodes <= NODES_AT_HOME else 20


def totals(user: User, now: datetime) -> Grid:
    """Count the user's nodes by zone and health, without cells; one query whatever the fleet's size."""
    return _counted(_rows(user, now, _NODE_CELLS, _COUNTED))


def grid(user: User, now: datetime) -> Grid:
    """Return the user's whole fleet with its cells; one query for the nodes, one for the GPUs if they fit."""
    rows = _rows(user, now, _NODE_CELLS, _LISTED)
    known = _counted((row.zone, row.health, 1, row.gpus, row.simulated) for row in map(_Row._make, rows))
    by_gpu = known.gpus <= GPUS_DRAWN
    if by_gpu:
        rows = _rows(user, now, _GPU_CELLS, _LISTED)
    zones = {zone.name: zone for zone in known.zones}
    counts: Counter[str] = Counter()
    for name, group in groupby(map(_Row._make, rows), key=lambda row: row.zone):
        cells = tuple(Cell(row.node, row.gpu, row.health, row.simulated) for row in group)
        counts.update(cell.health for cell in cells)
        if name in zones:  # a zone may be born between the two queries
            zones[name].cells = cells
    return Grid(known.zones, by_gpu, [entry for _, entry in _entries(counts)])


def _counted(rows: Iterable[tuple[str, str, int, int, bool]]) -> Grid:
    """Add (zone, health, nodes, GPUs, simulated) up to a grid without cells."""
    zones: dict[str, Zone] = {}
    for name, health, nodes, gpus, simulated in rows:
        zone = zones.get(name)
        if zone is None:
            zone = zones[name] = Zone(name)
        zone.nodes += nodes
        zone.gpus += gpus
        zone.simulated |= simulated
        zone.counts[health] += nodes
    counts = sum((zone.counts for zone in zones.values()), Counter[str]())
    return Grid(tuple(zones.values()), by_gpu=False, legend=[entry for _, entry in _entries(counts)])


def at_home(user: User, now: datetime) -> Grid:
    """Return the fleet as the start page shows it: with cells while it is small."""
    known = totals(user, now)
    return known if known.nodes > NODES_AT_HOME else grid(user, now)


def _entries(counts: Mapping[str, int]) -> Iterator[tuple[str, tuple[str, str, str, int]]]:
    return ((key, (*HEALTH[key], counts[key])) for key in HEALTH if counts.get(key))


class _Row(NamedTuple):
    """A row of the listing; `gpus` is the node's count."""

    zone: str
    node: str
    gpu: int | None
    health: str
    simulated: bool
    gpus: int


# GREATEST passes over NULL: no GPU, or nothing told
_NODE_CELLS = "SELECT facts.*, NULL::int AS gpu, GREATEST(worst, told) AS ill FROM facts"
_GPU_CELLS = """
    SELECT zone, facts.name, phase, silent, gpus, COALESCE(g.simulated, FALSE) AS simulated, failed, busy,
           g.index AS gpu, GREATEST(r.rank, told) AS ill
    FROM facts LEFT JOIN fleet_gpu g ON g.node_id = facts.id
    LEFT JOIN unnest(%(names)s::text[], %(ranks)s::int[]) AS r(name, rank) ON r.name = g.health"""
_COUNTED = """SELECT zone, health, count(*), sum(gpus)::int, bool_or(simulated)
              FROM judged GROUP BY zone, health ORDER BY zone, health"""
_LISTED = "SELECT zone, name, gpu, health, simulated, gpus FROM judged ORDER BY zone, name, gpu"


def _rows(user: User, now: datetime, cells: str, asked: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(
            _text().format(cells=cells, asked=asked),
            {
                "teams": list(teams_for(user).values_list("pk", flat=True)),
                "now": now,
                "polls": OVERDUE_POLLS,
                "names": list(RANKS),
                "ranks": list(RANKS.values()),
                "sick_types": list(Condition.SICK),
                "sick_ranks": [RANKS[str(health)] for health in Condition.SICK.values()],
            },
        )
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


@cache
def _text() -> str:
    return (Path(__file__).parent / "sql" / "judged.sql").read_text()
