"""Charts as pages show them: what `_chart.html` is told, the explore page's choices, a node's newest figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from django.db.models import Exists, OuterRef
from django.http import QueryDict
from django.urls import reverse

from apps.access.models import User
from apps.access.selectors import for_user
from apps.fleet.models import Gpu, Node
from apps.models.models import RegisteredModel
from apps.observability import samples
from apps.observability.chart_query import DEFAULT_RANGE, METRICS, ChartMetric, ChartQuery, Source
from apps.observability.charts import Chart
from apps.observability.samples import Latest

NODE_METRICS = ("temperature_c", "power_w", "utilization_ratio", "memory_used_bytes")
MODEL_METRICS = ("requests", "latency_p99_ms", "errors_ratio")
EACH_MAX = 16  # charts side by side, where every GPU has its own
NAMES_OFFERED = 200
TABLE_ROWS = 500
NAMED = 4  # names in a chart's title
Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class ChartSpec:
    """What `observability/_chart.html` draws: where its data is, as JSON, CSV and table, and what it is called."""

    title: str
    unit: str
    src: str
    csv: str
    table: str
    simulated: bool = False
    height: int = 190


def spec(
    metric: ChartMetric, of: Pairs, time: Pairs, *, title: str = "", simulated: bool = False, height: int = 190
) -> ChartSpec:
    """Return a chart of `metric`; `of` says of what (`gpu`, `node`, `model`, …), `time` which window."""
    query = urlencode([("metric", metric.name), *of, *time])
    return ChartSpec(
        title or metric.label,
        metric.unit,
        f"{reverse('series-json')}?{query}",
        f"{reverse('series-csv')}?{query}",
        f"{reverse('explore')}?{query}&view=table",
        simulated,
        height,
    )


def time_of(data: QueryDict) -> list[tuple[str, str]]:
    """Return the part of a query that says which time is shown."""
    fixed = [(name, data.get(name, "")) for name in ("from", "to") if data.get(name)]
    return fixed or [("range", data.get("range", "") or DEFAULT_RANGE)]


def node_charts(node: Node, data: QueryDict) -> list[ChartSpec]:
    """Return the charts of a node's GPUs; none where it has no GPU."""
    simulated = set(node.gpus.values_list("simulated", flat=True))
    if not simulated:
        return []
    return [
        spec(METRICS[name], [("node", node.name)], time_of(data), simulated=True in simulated) for name in NODE_METRICS
    ]


def model_charts(model: RegisteredModel, data: QueryDict) -> list[ChartSpec]:
    """Return the charts of a model's requests by version."""
    return [spec(METRICS[name], [("model", model.slug)], time_of(data)) for name in MODEL_METRICS]


def explored(query: ChartQuery, gpus: Sequence[Gpu], data: QueryDict) -> list[ChartSpec]:
    """Return the explore page's charts: one of everything, or one a GPU, each with its own band."""
    time, metric = time_of(data), query.metric
    extra = [("band", "1")] if query.band else []
    if data.get("charts") == "each" and metric.source is Source.GPU and not query.by_node:
        return [
            spec(
                metric, [("gpu", gpu.uuid), *extra], time,
                title=f"{gpu.node.name} GPU {gpu.index}", simulated=gpu.simulated, height=170,
            )
            for gpu in gpus[:EACH_MAX]
        ]  # fmt: skip
    of = [("gpu", uuid) for uuid in query.gpus] + [("node", name) for name in query.nodes]
    of += [("index", str(index)) for index in query.indices]
    of += [("by", "node")] if query.by_node else []
    if metric.source is Source.REQUESTS:
        of = [("model", slug) for slug in query.models]
    names = [f"{gpu.node.name} GPU {gpu.index}" for gpu in gpus if gpu.uuid in query.gpus]
    title = _listed([*query.nodes, *names] if metric.source is Source.GPU else query.models)
    return [spec(metric, of + extra, time, title=title, simulated=any(gpu.simulated for gpu in gpus), height=340)]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"


@dataclass(frozen=True)
class Offered:
    """What the explore page's fields suggest."""

    nodes: list[str]
    models: list[str]
    indices: list[int]


def offered(user: User, gpus: Sequence[Gpu]) -> Offered:
    """Return the nodes (with GPUs) and models in the user's sight, by name, and the GPU numbers of those chosen."""
    with_gpus = for_user(Node.objects.filter(Exists(Gpu.objects.filter(node=OuterRef("pk")))), user)
    names = with_gpus.order_by("name").values_list("name", flat=True)[:NAMES_OFFERED]
    slugs = for_user(RegisteredModel.objects.order_by("slug"), user).values_list("slug", flat=True)[:NAMES_OFFERED]
    on_nodes = Gpu.objects.filter(node_id__in={gpu.node_id for gpu in gpus}).order_by("index")
    indices = on_nodes.values_list("index", flat=True).distinct() if gpus else []
    return Offered(list(names), list(slugs), list(indices))


@dataclass(frozen=True)
class TableRow:
    """A moment of a chart's table: one value a line, None where nothing was measured."""

    at: datetime
    values: tuple[float | None, ...]


def table(data: Chart) -> list[TableRow]:
    """Return a chart's newest points as rows, newest first, in the unit shown."""
    factor = data.metric.factor
    columns = [(line.mean * factor).tolist()[::-1][:TABLE_ROWS] for line in data.lines]
    rows = []
    for position, second in enumerate(data.times.tolist()[::-1][:TABLE_ROWS]):
        values = tuple(None if column[position] != column[position] else column[position] for column in columns)
        rows.append(TableRow(datetime.fromtimestamp(second, UTC), values))
    return rows


@dataclass(frozen=True)
class GpuFigures:
    """A GPU with the newest that is known of it; None where there is no figure."""

    gpu: Gpu
    at: datetime | None
    temperature_c: float | None
    power_w: float | None
    utilization_percent: float | None
    memory_used_bytes: int | None


def newest_figures(gpus: Sequence[Gpu]) -> list[GpuFigures]:
    """Return each GPU with its newest figures, in the order given."""
    known = samples.latest([gpu.number for gpu in gpus])
    rows = []
    for gpu in gpus:
        latest = known.get(gpu.number)
        share, used = _figure(latest, "utilization_ratio"), _figure(latest, "memory_used_bytes")
        rows.append(
            GpuFigures(
                gpu,
                latest.time if latest else None,
                _figure(latest, "temperature_c"),
                _figure(latest, "power_w"),
                None if share is None else 100 * share,
                None if used is None else int(used),
            )
        )
    return rows


def _figure(latest: Latest | None, metric: str) -> float | None:
    value = latest.values.get(metric) if latest else None
    return None if value is None or value != value else float(value)
