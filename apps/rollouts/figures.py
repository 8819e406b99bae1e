"""Geometry of the evidence page's figures: where intervals, margins and bars lie in their SVGs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

WIDTH = 220.0
INSET = 8.0  # of the axis, so that round line ends stay inside
PADDING = 0.18  # of the shown range, on both sides
HISTOGRAM_WIDTH, HISTOGRAM_HEIGHT = 760.0, 62.0
TICK_ROOM = 40.0


@dataclass(frozen=True)
class Interval:
    """A confidence interval drawn against its margin; x in SVG units, 0 to 220."""

    low: float
    high: float
    estimate: float | None
    margin: float | None
    zone: tuple[float, float] | None  # (x, width) of where the metric would fail


def interval(
    low: float | None, high: float | None, estimate: float | None, margin: float | None, better: str
) -> Interval | None:
    """Place an interval and its margin on one axis that just holds both; None without an interval."""
    if low is None or high is None:
        return None
    points = [low, high, *(value for value in (estimate, margin) if value is not None)]
    first, last = min(points), max(points)
    pad = (last - first) * PADDING or max(abs(first), 1.0) * 0.01
    first, last = first - pad, last + pad

    def x(value: float) -> float:
        return round(INSET + (value - first) / (last - first) * (WIDTH - 2 * INSET), 1)

    zone = None
    if margin is not None:
        at = x(margin)
        zone = (INSET, round(at - INSET, 1)) if better == "higher" else (at, round(WIDTH - INSET - at, 1))
    return Interval(
        low=x(low),
        high=x(high),
        estimate=None if estimate is None else x(estimate),
        margin=None if margin is None else x(margin),
        zone=zone,
    )


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    below: bool  # on the failing side of the margin
    count: int
    label: str  # the bin's range


@dataclass(frozen=True)
class Tick:
    x: float
    text: str
    anchor: str


@dataclass(frozen=True)
class Histogram:
    """Bars of a distribution with the margin as a line; x 0 to 760, y 0 (top) to 62 (base)."""

    bars: tuple[Bar, ...]
    margin: float | None
    ticks: tuple[Tick, ...]


def histogram(data: Any, margin: float | None) -> Histogram | None:
    """Lay out `{"edges": [n + 1], "counts": [n]}`; None when it is missing or empty.

    Every bin is as wide as the next: the first one may gather all that lies far below. Empty bins on the left are cut
    off, up to two below the margin.
    """
    if not isinstance(data, dict) or not any(data.get("counts", ())):
        return None
    edges: Sequence[float] = data["edges"]
    counts: Sequence[int] = data["counts"]
    if len(edges) != len(counts) + 1:
        return None
    first = _first_bin(edges, counts, margin)
    edges, counts = edges[first:], counts[first:]
    step, tallest = HISTOGRAM_WIDTH / len(counts), max(counts)
    gap = min(4.0, step / 5)
    bars = tuple(
        Bar(
            x=round(index * step, 1),
            y=round(HISTOGRAM_HEIGHT - _height(count, tallest), 1),
            width=round(step - gap, 1),
            height=round(_height(count, tallest), 1),
            below=margin is not None and edges[index + 1] <= margin,
            count=count,
            label=f"{edges[index]:g} to {edges[index + 1]:g}",
        )
        for index, count in enumerate(counts)
    )
    at = None if margin is None else _place(edges, step, margin)
    return Histogram(bars, None if at is None else round(at - gap / 2, 1), _ticks(edges, margin, at))


def _first_bin(edges: Sequence[float], counts: Sequence[int], margin: float | None) -> int:
    filled = next(index for index, count in enumerate(counts) if count)
    if margin is None:
        return filled
    below = sum(edge <= margin for edge in edges[1:])
    return max(0, min(filled, below - 2))


def _height(count: int, tallest: int) -> float:
    return max(1.0, count / tallest * (HISTOGRAM_HEIGHT - 2)) if count else 0.0


def _place(edges: Sequence[float], step: float, value: float) -> float | None:
    """Return the x of a value between the edges."""
    for index, (left, right) in enumerate(pairwise(edges)):
        if left <= value <= right:
            return (index + (value - left) / (right - left)) * step
    return None


def _ticks(edges: Sequence[float], margin: float | None, at: float | None) -> tuple[Tick, ...]:
    """Label both ends and the margin; an end that the margin's label would cover goes without."""
    ticks = [Tick(0.0, f"{edges[0]:g}", "start"), Tick(HISTOGRAM_WIDTH, f"{edges[-1]:.2f}", "end")]
    if at is None or margin is None:
        return tuple(ticks)
    free = [tick for tick in ticks if abs(tick.x - at) > TICK_ROOM]
    return (*free, Tick(round(at, 1), f"{margin:g}", "middle"))
