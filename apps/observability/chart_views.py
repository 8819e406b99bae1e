"""Charts: their data as JSON and CSV, and the explore page."""

from __future__ import annotations

import hashlib
import json

from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from apps.access.requests import SignedIn
from apps.fleet.models import Gpu
from apps.lib.console import answer, data, page
from apps.lib.errors import DomainError
from apps.observability import chart_pages as reads
from apps.observability import charts
from apps.observability.chart_query import METRICS, RANGES, ChartQuery, Source, parse

GROUPS = (("GPUs", Source.GPU), ("Requests", Source.REQUESTS))


@data
@require_GET
def series_json(request: SignedIn) -> HttpResponseBase:
    """The points of a chart. With `after` only those from there on, and 204 where they are what `seen` names."""
    told = charts.as_json(charts.chart(request.user, parse(request.GET, timezone.now())))
    lasting = {name: value for name, value in told.items() if name not in ("from", "to")}
    seen = hashlib.sha256(json.dumps(lasting).encode()).hexdigest()[:16]
    if request.GET.get("seen") == seen:
        return HttpResponse(status=204)
    body = json.dumps(told | {"seen": seen}, separators=(",", ":"), allow_nan=False)
    return HttpResponse(body, content_type="application/json", headers={"Cache-Control": "no-store"})


@data
@require_GET
def series_csv(request: SignedIn) -> HttpResponseBase:
    """The same points as CSV, to be kept."""
    query = parse(request.GET, timezone.now())
    lines = charts.as_csv(charts.chart(request.user, query))
    response = StreamingHttpResponse(lines, content_type="text/csv; charset=utf-8")
    name = f"{query.metric.name}-{query.window.since:%Y%m%dT%H%M%SZ}-{query.window.until:%Y%m%dT%H%M%SZ}.csv"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


@page
def explore(request: SignedIn) -> HttpResponse:
    """Any series, any range, with what was expected; all of it in the address."""
    context: dict[str, object] = {"groups": _groups(), "ranges": RANGES.items(), "query": None, "charts": []}
    gpus: list[Gpu] = []
    status = 200
    try:
        query = parse(request.GET, timezone.now())
        context |= {"query": query, "zoomed": not query.window.range, "range": query.window.range}
        if query.metric.source is Source.GPU:
            gpus = charts.chosen_gpus(request.user, query)
        if query.names_something:
            context |= _drawn(request, query, gpus)
    except DomainError as error:
        context |= {"failed": error.sentence}
        status = error.status
    context |= {
        "metric": request.GET.get("metric") or "temperature_c",
        "chosen_nodes": _typed(request, "node"),
        "chosen_models": _typed(request, "model"),
        "chosen_gpus": [gpu for gpu in gpus if gpu.uuid in request.GET.getlist("gpu")],
        "of_requests": METRICS.get(request.GET.get("metric", ""), METRICS["temperature_c"]).source is Source.REQUESTS,
        "offered": reads.offered(request.user, gpus),
    }
    return answer(request, "observability/explore.html", context, status=status)


def _drawn(request: SignedIn, query: ChartQuery, gpus: list[Gpu]) -> dict[str, object]:
    """Return the charts, or the one chart's points as a table, which needs no JavaScript."""
    specs = reads.explored(query, gpus, request.GET)
    if request.GET.get("view") != "table":
        return {"charts": specs, "left_out": max(0, len(gpus) - len(specs)) if len(specs) > 1 else 0}
    chart = charts.chart(request.user, query)
    return {"as_table": True, "chart": chart, "rows": reads.table(chart), "chart_spec": specs[0]}


def _typed(request: SignedIn, name: str) -> list[str]:
    return list(dict.fromkeys(value.strip() for value in request.GET.getlist(name) if value.strip()))


def _groups() -> list[tuple[str, list[tuple[str, str]]]]:
    return [
        (title, [(each.name, each.label) for each in METRICS.values() if each.source is source])
        for title, source in GROUPS
    ]
