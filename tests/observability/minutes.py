"""Minutes of GPU samples in the store, as ingest and rollups would have left them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from apps.fleet import hardware
from apps.fleet.models import Gpu, Node
from apps.observability import samples
from apps.observability.detection import unix_minute
from apps.observability.detector import DAY
from tests.observability.series import Floats

# What is put lies in the past by the real clock, and begins two days before a midnight.
TODAY = unix_minute(datetime.now(UTC)) // DAY * DAY
HISTORY = TODAY - 2 * DAY


def add_gpus(node: Node, count: int) -> list[int]:
    """Give the node so many GPUs; return their numbers."""
    listed = [
        {"uuid": f"GPU-{node.name}-{index}", "index": index, "name": "H100", "memory_bytes": 1 << 36, "simulated": True}
        for index in range(count)
    ]
    hardware.store_gpus(node, {"gpus": listed})
    return list(Gpu.objects.filter(node=node).order_by("index").values_list("number", flat=True))


def put(gpus: Sequence[int], values: Floats, first: int, metrics: Sequence[str] = ("temperature_c",)) -> None:
    """Store (minutes, gpus) from Unix minute `first` on, the same values for each metric; NaN: no row."""
    times = (first + np.arange(len(values))) * 60.0
    for gpu, column in zip(gpus, values.T, strict=True):
        known = ~np.isnan(column)
        samples.copy_history(gpu, dict.fromkeys(metrics, column[known]), times[known], True)


def at(minute: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)
