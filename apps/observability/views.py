"""What other apps' pages show of the time series."""

from __future__ import annotations

from django.http import HttpResponse

from apps.access.requests import SignedIn
from apps.fleet.page_selectors import get_node
from apps.lib.console import answer, page
from apps.models.selectors import get_model
from apps.observability import chart_pages as reads
from apps.observability.chart_query import RANGES


@page
def node_charts(request: SignedIn, name: str) -> HttpResponse:
    """A node's GPUs as charts, for its page."""
    node = get_node(request.user, name)
    return _charts(request, "observability/node_charts.html", {"node": node}, reads.node_charts(node, request.GET))


@page
def traffic(request: SignedIn, slug: str) -> HttpResponse:
    """A model's requests by version as charts, for its page."""
    model = get_model(request.user, slug)
    return _charts(request, "observability/traffic.html", {"model": model}, reads.model_charts(model, request.GET))


def _charts(request: SignedIn, template: str, context: dict[str, object], specs: list[reads.ChartSpec]) -> HttpResponse:
    zoomed = bool(request.GET.get("from") or request.GET.get("to"))
    time = {"ranges": RANGES.items(), "range": "" if zoomed else dict(reads.time_of(request.GET))["range"]}
    return answer(request, template, context | time | {"charts": specs, "zoomed": zoomed})


@page
def node_gpus(request: SignedIn, name: str) -> HttpResponse:
    """A node's GPUs with their health and newest figures, for its page."""
    node = get_node(request.user, name)
    rows = reads.newest_figures(list(node.gpus.order_by("index")))
    context = {"node": node, "rows": rows, "simulated": any(row.gpu.simulated for row in rows)}
    return answer(request, "observability/node_gpus.html", context, parts=("gpus",))
