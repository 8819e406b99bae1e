"""What charts show: series read, put onto one grid of times, with band and markers; as JSON and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.access.models import User
from apps.access.selectors import for_user
from apps.fleet.models import Gpu, Node
from apps.lib.errors import DomainError, NotFound
from apps.observability import detection, samples
from apps.observability.chart_markers import Marker, markers
from apps.observability.chart_query import MINUTE, SERIES_MAX, ChartMetric, ChartQuery, Source
from apps.observability.chart_requests import request_lines
from apps.observability.detection import BandPoint
from apps.observability.samples import GpuSeries

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """One line of a chart: values on the chart's grid, NaN where nothing was measured."""

    key: str
    label: str
    simulated: bool
    mean: Floats  # (times,)
    low: Floats  # (times,)
    high: Floats  # (times,)


@dataclass(frozen=True)
class Band:
    """What was expected, on the chart's grid."""

    expected: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Chart:
    """A chart's data in the metric's own unit; `times` are the beginnings of its points in unix seconds."""

    query: ChartQuery
    step_s: int
    times: NDArray[np.int64]
    lines: tuple[Line, ...] = ()
    band: Band | None = None
    markers: tuple[Marker, ...] = ()

    @property
    def metric(self) -> ChartMetric:
        return self.query.metric

    @property
    def simulated(self) -> bool:
        return any(line.simulated for line in self.lines)


@dataclass
class Points:
    """Points of one line before they are put onto the grid."""

    key: str
    label: str
    simulated: bool
    times: Floats  # unix seconds
    mean: Floats
    low: Floats
    high: Floats
    number: int | None = None  # of the GPU, where the line is one


def chart(user: User, query: ChartQuery) -> Chart:
    """Read what `query` asks for, within the user's teams. Raises NotFound and DomainError."""
    step = query.window.step
    if query.metric.source is Source.REQUESTS:
        points = [Points(*line) for line in request_lines(user, query, max(step, MINUTE))]
        step = max(step, MINUTE)
        nodes: Sequence[Node] = ()
    else:
        gpus = chosen_gpus(user, query)
        step, points = _gpu_lines(gpus, query, step)
        nodes = list({gpu.node_id: gpu.node for gpu in gpus}.values())
    bands = _band_points(points, query)
    times = _grid(points, bands, query, step)
    return Chart(
        query,
        int(step.total_seconds()),
        times,
        tuple(_line(each, times, step) for each in points),
        _band(bands, times, step) if bands else None,
        markers(user, nodes, query),
    )


def chosen_gpus(user: User, query: ChartQuery) -> list[Gpu]:
    """Return the GPUs that the query names, by node and index. Raises NotFound, and DomainError for too many."""
    mine = for_user(Gpu.objects.select_related("node"), user, field="node__team_id")
    named = {gpu.uuid: gpu for gpu in mine.filter(uuid__in=query.gpus)} if query.gpus else {}
    for uuid in query.gpus:
        if uuid not in named:
            raise NotFound("gpu_not_found", f"There is no GPU «{uuid[:96]}» in your teams.")
    nodes = _known_nodes(user, query.nodes)
    on_nodes = mine.filter(node_id__in=nodes) if nodes else Gpu.objects.none()
    if query.indices:
        on_nodes = on_nodes.filter(index__in=query.indices)
    named |= {gpu.uuid: gpu for gpu in on_nodes[: 8 * SERIES_MAX + 1]}
    lines = len({gpu.node_id for gpu in named.values()}) if query.by_node else len(named)
    if lines > SERIES_MAX or len(named) > 8 * SERIES_MAX:
        raise DomainError(
            "too_many_series",
            f"A chart draws at most {SERIES_MAX} series; name fewer nodes, or only some of their GPUs.",
        )
    return sorted(named.values(), key=lambda gpu: (gpu.node.name, gpu.index))


def _known_nodes(user: User, names: Sequence[str]) -> list[Any]:
    found = dict(for_user(Node.objects.filter(name__in=names), user).values_list("name", "pk")) if names else {}
    for name in names:
        if name not in found:
            raise NotFound("node_not_found", f"There is no node «{name[:63]}» in your teams; the list is under Fleet.")
    return list(found.values())


def _gpu_lines(gpus: Sequence[Gpu], query: ChartQuery, step: timedelta) -> tuple[timedelta, list[Points]]:
    """Read the GPUs' points; where single samples don't reach back through the window, minutes do."""
    window = query.window
    since = max(window.since, query.after) if query.after else window.since
    numbers = {gpu.number: gpu for gpu in gpus}

    def read(length: timedelta) -> list[GpuSeries]:
        return samples.gpu_points(query.metric.name, list(numbers), _floor(since, length), window.until, step=length)

    found = read(step) if gpus else []
    reach = (since + (window.until - since) / 3).timestamp()
    if step < MINUTE and not any(len(each.times) and _seconds(each.times)[0] <= reach for each in found):
        step = MINUTE
        found = read(step) if gpus else []
    points = [_points(numbers[each.gpu], each) for each in found]
    return step, _by_node(points, gpus, step) if query.by_node else points


def _points(gpu: Gpu, series: GpuSeries) -> Points:
    label = f"{gpu.node.name} GPU {gpu.index}"
    mean, low, high = (np.asarray(part, np.float64) for part in (series.mean, series.low, series.high))
    return Points(gpu.uuid, label, gpu.simulated, _seconds(series.times), mean, low, high, number=gpu.number)


def _by_node(points: Sequence[Points], gpus: Sequence[Gpu], step: timedelta) -> list[Points]:
    """Fold the GPUs of each node into one line: their mean, the lowest of the lows, the highest of the highs."""
    by_uuid = {each.key: each for each in points}
    folded = []
    for node in dict.fromkeys(gpu.node for gpu in gpus):
        parts = [by_uuid[gpu.uuid] for gpu in gpus if gpu.node_id == node.pk and gpu.uuid in by_uuid]
        length = step.total_seconds()
        times = np.unique(np.concatenate([part.times // length for part in parts])) * length
        means, lows, highs = (
            np.array([_onto(part.times, getattr(part, name), times, length) for part in parts])  # (gpus, times)
            for name in ("mean", "low", "high")
        )
        simulated = any(part.simulated for part in parts)
        if len(times):
            folded.append(
                Points(
                    node.name, node.name, simulated, times,
                    _quiet(np.nanmean, means), _quiet(np.nanmin, lows), _quiet(np.nanmax, highs),
                )
            )  # fmt: skip
        else:
            folded.append(Points(node.name, node.name, simulated, times, times, times, times))
    return folded


def _quiet(function: Any, values: Floats) -> Floats:
    """Fold over the first axis; a column of NaN alone stays NaN."""
    empty = np.isnan(values).all(axis=0)
    folded: Floats = function(np.where(empty, 0.0, values), axis=0)
    folded[empty] = np.nan
    return folded


def _grid(
    points: Sequence[Points], bands: Sequence[BandPoint], query: ChartQuery, step: timedelta
) -> NDArray[np.int64]:
    """Return every step from the first point to the last, so that a gap in the data is a gap in the chart."""
    length = int(step.total_seconds())
    ends = [(int(each.times[0]), int(each.times[-1])) for each in points if len(each.times)]
    if bands:
        ends.append((int(bands[0].time.timestamp()), int(bands[-1].time.timestamp())))
    if not ends:
        return np.zeros(0, np.int64)
    first = min(start for start, _ in ends)
    if query.after:
        first = int(query.after.timestamp())  # what follows a part that the page has, begins where that ends
    last = max(end for _, end in ends)
    return np.arange(first // length * length, last // length * length + 1, length, dtype=np.int64)


def _line(points: Points, times: NDArray[np.int64], step: timedelta) -> Line:
    length = step.total_seconds()
    mean, low, high = (
        _onto(points.times, values, times.astype(np.float64), length)
        for values in (points.mean, points.low, points.high)
    )
    return Line(points.key, points.label, points.simulated, mean, low, high)


def _onto(at: Floats, values: Floats, times: Floats, length: float) -> Floats:
    """Return values on a grid of steps of `length` seconds; (times,), NaN where there is none."""
    laid = np.full(len(times), np.nan)
    if len(times) and len(at):
        slots = np.searchsorted(times, np.floor(at / length) * length)
        inside = (slots < len(times)) & (np.floor(at / length) * length >= times[0])
        laid[slots[inside]] = values[inside]
    return laid


def _band_points(points: Sequence[Points], query: ChartQuery) -> list[BandPoint]:
    """Return the expectation of the one GPU shown: two bands behind each other can't be told apart."""
    if not query.band or len(points) != 1 or points[0].number is None:
        return []
    window = query.window
    since = max(window.since, query.after) if query.after else window.since
    found = detection.last_minutes(points[0].number, query.metric.name, _floor(since, MINUTE))
    return [point for point in found if point.time < window.until]


def _band(points: Sequence[BandPoint], times: NDArray[np.int64], step: timedelta) -> Band:
    """Lay the minutes of a band onto the grid: each point its minute's, or the mean of the minutes within it."""
    minutes = np.array([point.time.timestamp() // 60 * 60 for point in points])  # (points,)
    values = np.array([(point.expected, point.low, point.high) for point in points], np.float64)  # (points, 3)
    length = max(step, MINUTE).total_seconds()
    slots, inverse = np.unique(minutes // length, return_inverse=True)
    known = ~np.isnan(values).any(axis=1)
    counts = np.bincount(inverse[known], minlength=len(slots))
    sums = [np.bincount(inverse[known], weights=values[known, part], minlength=len(slots)) for part in range(3)]
    means = [np.divide(part, counts, out=np.full(len(slots), np.nan), where=counts > 0) for part in sums]
    where = np.searchsorted(slots, times // length)
    found = (where < len(slots)) & (slots[np.minimum(where, len(slots) - 1)] == times // length)
    expected, low, high = (np.where(found, part[np.minimum(where, len(slots) - 1)], np.nan) for part in means)
    return Band(expected, low, high)


def as_json(data: Chart) -> dict[str, Any]:
    """Return a chart as `/series.json` tells it: values in the unit shown, null where nothing was measured."""
    metric, window = data.metric, data.query.window

    def told(values: Floats) -> list[float | None]:
        scaled = np.round(values * metric.factor, metric.digits + 2)
        return [None if value != value else value for value in scaled.tolist()]  # NaN alone differs from itself

    return {
        "metric": metric.name,
        "label": metric.label,
        "unit": metric.unit,
        "digits": metric.digits,
        "step_s": data.step_s,
        "from": int(window.since.timestamp()),
        "to": int(window.until.timestamp()),
        "live": bool(window.range),
        "times": data.times.tolist(),
        "series": [
            {
                "key": line.key,
                "label": line.label,
                "simulated": line.simulated,
                "mean": told(line.mean),
                "low": told(line.low),
                "high": told(line.high),
            }
            for line in data.lines
        ],
        "band": data.band
        and {"expected": told(data.band.expected), "low": told(data.band.low), "high": told(data.band.high)},
        "markers": [marker._asdict() for marker in data.markers],
    }


def as_csv(data: Chart) -> Iterator[str]:
    """Yield a chart as CSV, one line a point and series, values in the unit that the column's name says."""
    name = data.metric.name
    heads = ["time", "series", "key", "simulated", name, f"{name}_low", f"{name}_high"]
    if data.band:
        heads += ["expected", "expected_low", "expected_high"]
    yield _csv_row(heads)
    moments = [datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for second in data.times.tolist()]
    expected = _columns((data.band.expected, data.band.low, data.band.high)) if data.band else [()] * len(moments)
    for line in data.lines:
        about = [_plain(line.label), _plain(line.key), str(line.simulated).lower()]
        values = _columns((line.mean, line.low, line.high))
        for moment, row, band in zip(moments, values, expected, strict=True):
            if any(row) or any(band):
                yield _csv_row([moment, *about, *row, *band])


def _columns(parts: Sequence[Floats]) -> list[tuple[str, ...]]:
    told = [["" if value != value else f"{value:.7g}" for value in part.tolist()] for part in parts]
    return list(zip(*told, strict=True))


def _csv_row(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _plain(text: str) -> str:
    """A cell that begins like a formula would be one in a spreadsheet; a GPU's UUID is what a node says it is."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _seconds(times: NDArray[Any]) -> Floats:
    """Return times as unix seconds, whichever of NumPy's two ways they came in."""
    if times.dtype.kind == "M":
        seconds: Floats = times.astype("datetime64[us]").astype(np.int64) / 1e6
        return seconds
    return np.asarray(times, np.float64)


def _floor(moment: datetime, step: timedelta) -> datetime:
    length = step.total_seconds()
    return datetime.fromtimestamp(moment.timestamp() // length * length, UTC)
