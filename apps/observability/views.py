"""What other apps' pages show of the time series."""

from __future__ import annotations

from django.http import HttpResponse
from django.utils import timezone

from apps.access.requests import SignedIn
from apps.lib.console import answer, page
from apps.models.selectors import get_model
from apps.observability import page_selectors as reads


@page
def traffic(request: SignedIn, slug: str) -> HttpResponse:
    """A model's traffic by version, as charts whose data stands in tables beside them."""
    model = get_model(request.user, slug)
    wanted = request.GET.get("range", "")
    if wanted not in reads.RANGES:
        wanted = reads.DEFAULT_RANGE
    context = {
        "model": model,
        "charts": reads.traffic_charts(request.user, model, wanted, timezone.now()),
        "range": wanted,
        "ranges": [(key, name) for key, (name, _, _) in reads.RANGES.items()],
    }
    return answer(request, "observability/traffic.html", context, parts=("traffic",))
