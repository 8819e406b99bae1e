"""Geometry of the evidence page's figures: where intervals, margins and bars lie in their SVGs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 220.0
INSET = 8.0  # of the axis, so that round line ends stay inside
PADDING = 0.18  # of the shown range, on both sides
HISTOGRAM_WIDTH, HISTOGRAM_HEIGHT = 760.0, 62.0


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
class Histogram:
    """Bars of a distribution with the margin as a line; x 0 to 760, y 0 (top) to 62 (base)."""

    bars: tuple[Bar, ...]
    margin: float | None
    first: str
    last: str
    margin_label: str


def histogram(data: Any, margin: float | None) -> Histogram | None:
    """Lay out `{"edges": [n + 1], "counts": [n]}`; None when it is missing or empty."""
    if not isinstance(data, dict) or not data.get("counts"):
        return None
    edges: Sequence[float] = data["edges"]
    counts: Sequence[int] = data["counts"]
    tallest = max(counts)
    if len(edges) != len(counts) + 1 or edges[0] >= edges[-1] or tallest == 0:
        return None
    scale = HISTOGRAM_WIDTH / (edges[-1] - edges[0])
    bars = []
    for count, left, right in zip(counts, edges, edges[1:], strict=False):
        height = max(1.0, count / tallest * (HISTOGRAM_HEIGHT - 2)) if count else 0.0
        below = margin is not None and (left + right) / 2 < margin
        bars.append(
            Bar(
                x=round((left - edges[0]) * scale, 1),
                y=round(HISTOGRAM_HEIGHT - height, 1),
                width=round(max(1.0, (right - left) * scale - 3), 1),
                height=round(height, 1),
                below=below,
                count=count,
                label=f"{left:.3f} to {right:.3f}",
            )
        )
    inside = margin is not None and edges[0] < margin < edges[-1]
    return Histogram(
        bars=tuple(bars),
        margin=round((margin - edges[0]) * scale, 1) if inside and margin is not None else None,
        first=f"{edges[0]:.2f}",
        last=f"{edges[-1]:.2f}",
        margin_label=f"{margin:g}" if margin is not None else "",
    )
