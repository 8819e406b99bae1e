"""What a chart is asked for: the query string that pages, `/series.json` and `/series.csv` share, read and judged."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from django.http import QueryDict

from apps.lib.errors import DomainError
from protocol.metrics import GPU, Kind, Metric

SERIES_MAX = 50
POINTS_MAX = 2_000
DEFAULT_RANGE = "1h"
RANGES = {"15m": "15 min", "1h": "1 h", "6h": "6 h", "24h": "24 h", "7d": "7 d", "30d": "30 d"}
LONGEST = timedelta(days=400)  # as long as anything is kept
SHORTEST = timedelta(seconds=30)
MINUTE = timedelta(minutes=1)

_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
_RANGE = re.compile(r"([1-9]\d{0,3})([mhd])")
# How long a window may be for points of a length: some hundreds of points, of what the store has ready.
_STEPS = (
    (timedelta(minutes=30), timedelta(seconds=5)),
    (timedelta(hours=12), MINUTE),
    (timedelta(days=3), timedelta(minutes=5)),
    (timedelta(days=8), timedelta(minutes=10)),
    (timedelta(days=45), timedelta(hours=1)),
    (LONGEST * 2, timedelta(days=1)),
)


class Source(StrEnum):
    """Where a metric's points come from."""

    GPU = "gpu"
    REQUESTS = "requests"


@dataclass(frozen=True)
class ChartMetric:
    """A metric as people read it: stored values times `factor` are in `unit`, with so many digits worth showing."""

    name: str
    label: str
    unit: str
    factor: float
    digits: int
    source: Source


_SHOWN = {"%": ("%", 100.0, 0), "B": ("GB", 1e-9, 1), "Hz": ("MHz", 1e-6, 0), "B/s": ("MB/s", 1e-6, 1)}


def _of_gpu(metric: Metric) -> ChartMetric:
    unit, factor, digits = _SHOWN.get(metric.unit, (metric.unit, 1.0, metric.digits))
    return ChartMetric(metric.name, metric.label, unit, factor, digits, Source.GPU)


METRICS = {
    metric.name: metric
    for metric in (
        *(_of_gpu(metric) for metric in GPU if metric.kind in (Kind.GAUGE, Kind.COUNTER)),
        ChartMetric("requests", "Requests", "/min", 1.0, 0, Source.REQUESTS),
        ChartMetric("latency_p50_ms", "Latency, median", "ms", 1.0, 1, Source.REQUESTS),
        ChartMetric("latency_p99_ms", "Latency, p99", "ms", 1.0, 1, Source.REQUESTS),
        ChartMetric("errors_ratio", "Errors", "%", 100.0, 2, Source.REQUESTS),
    )
}


@dataclass(frozen=True)
class Window:
    """The time that a chart shows. `range` names a window that ends now and moves on; empty for a fixed one."""

    since: datetime
    until: datetime
    range: str

    @property
    def step(self) -> timedelta:
        """Return the length of a point."""
        span = self.until - self.since
        return next(step for longest, step in _STEPS if span <= longest)


@dataclass(frozen=True)
class ChartQuery:
    """One chart: a metric of GPUs (by UUID, or all of a node's, or those of some indices) or of models' requests."""

    metric: ChartMetric
    window: Window
    gpus: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    indices: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    by_node: bool = False  # one line a node: the mean of its GPUs between the lowest and the highest
    band: bool = False
    after: datetime | None = None  # only points from here on

    @property
    def names_something(self) -> bool:
        """Tell whether the query names what its metric is measured of."""
        return bool(self.gpus or self.nodes) if self.metric.source is Source.GPU else bool(self.models)


def parse(data: QueryDict, now: datetime) -> ChartQuery:
    """Read a chart's query. Raises DomainError with what is wrong in it."""
    name = data.get("metric", "") or "temperature_c"
    if name not in METRICS:
        known = ", ".join(METRICS)
        raise DomainError("unknown_metric", f"There is no metric «{name[:60]}» to draw; there are: {known}.")
    by = data.get("by", "") or "gpu"
    if by not in ("gpu", "node"):
        raise DomainError("bad_parameter", f"«?by=» is gpu or node, not «{by[:40]}».")
    return ChartQuery(
        metric=METRICS[name],
        window=window(data, now),
        gpus=_names(data, "gpu"),
        nodes=_names(data, "node"),
        indices=tuple(_index(text) for text in _names(data, "index")),
        models=_names(data, "model"),
        by_node=by == "node",
        band=data.get("band", "") in ("1", "on", "true"),
        after=_moment(data, "after"),
    )


def window(data: QueryDict, now: datetime) -> Window:
    """Read `?range=` or `?from=&to=`; both missing is an hour. Raises DomainError."""
    since, until = _moment(data, "from"), _moment(data, "to")
    if since is None and until is None:
        text = data.get("range", "") or DEFAULT_RANGE
        return Window(now - _length(text), now, text)
    end = until or now
    start = since or end - _length(data.get("range", "") or DEFAULT_RANGE)
    if not SHORTEST <= end - start <= LONGEST:
        raise DomainError(
            "bad_range", "A chart shows between 30 seconds and 400 days; mend «?from=» and «?to=», the later one last."
        )
    return Window(start, end, "")


def _length(text: str) -> timedelta:
    found = _RANGE.fullmatch(text)
    length = int(found[1]) * _UNITS[found[2]] if found else timedelta(0)
    if not SHORTEST <= length <= LONGEST:
        raise DomainError("bad_range", f"«?range=» is a length such as 15m, 6h or 7d, at most 400d, not «{text[:40]}».")
    return length


def _moment(data: QueryDict, name: str) -> datetime | None:
    """Return a time: ISO 8601, or unix seconds."""
    text = data.get(name, "")
    if not text:
        return None
    try:
        if re.fullmatch(r"\d{1,11}(\.\d{1,6})?", text):
            return datetime.fromtimestamp(float(text), UTC)
        moment = datetime.fromisoformat(text.replace(" ", "+"))  # an unescaped «+» of a zone arrives as a space
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise DomainError("bad_parameter", f"«?{name}=» must be a time such as 2030-01-31T12:00:00Z.") from None


def _names(data: QueryDict, name: str) -> tuple[str, ...]:
    """Return a parameter's values, once each, in the order given."""
    return tuple(dict.fromkeys(value.strip() for value in data.getlist(name) if value.strip()))


def _index(text: str) -> int:
    if not re.fullmatch(r"\d{1,3}", text):
        raise DomainError("bad_parameter", f"«?index=» is a GPU's number on its host, not «{text[:40]}».")
    return int(text)
