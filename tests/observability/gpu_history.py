"""GPUs' minutes as a healthy host's would be, then some of its live samples: what tests of charts look at."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import uuid4

import numpy as np
import pytest
from django.db import connection

from apps.fleet.models import Gpu, Node
from apps.observability import rollups, samples, services, store
from protocol.telemetry_pb2 import TelemetryBatch
from tests.observability.batches import gpu_block

LIVE = timedelta(minutes=3)  # so much of it came as samples, one every five seconds


def fill(node: Node, until: datetime, hours: float = 6.0) -> np.ndarray:
    """Give each GPU of a node a minute's mean for so many hours, then samples up to `until`; returns the minutes."""
    if store.is_timescale() and connection.in_atomic_block:
        pytest.skip("a continuous aggregate can't be refreshed within a test's transaction")
    gpus = list(node.gpus.order_by("index"))
    live = rollups.floor(until, rollups.MINUTE) - LIVE
    minutes = np.arange((live - timedelta(hours=hours)).timestamp(), live.timestamp(), 60)
    for gpu in gpus:
        samples.copy_history(gpu.number, figures(gpu, minutes), minutes, gpu.simulated)
    rollups.refresh(live + rollups.LAG)
    send(node, gpus, np.arange(live.timestamp(), until.timestamp(), 5))
    rollups.refresh(until)
    return minutes


def send(node: Node, gpus: Sequence[Gpu], times: np.ndarray) -> None:
    """Store samples of these GPUs at these Unix seconds, as a batch of a new boot."""
    blocks = [
        gpu_block([gpu.uuid], times, simulated=gpu.simulated, **figures(gpu, times)) for gpu in gpus if len(times)
    ]
    batch = TelemetryBatch(node=str(node.pk), boot_id=str(uuid4()), seq=1, gpu=blocks)
    services.store_batch(node, batch, now=datetime.fromtimestamp(float(times[-1]), tz=rollups.EPOCH.tzinfo))


def figures(gpu: Gpu, times: np.ndarray) -> dict[str, np.ndarray]:
    """What a GPU measures at these Unix seconds; by its index a little warmer, and never twice the same."""
    day = np.sin(2 * np.pi * (times % 86_400) / 86_400)
    random = np.random.default_rng(gpu.index)
    load = np.clip(0.5 + 0.2 * day + 0.03 * random.standard_normal(len(times)), 0, 1)
    return {
        "temperature_c": 56 + 9 * load + gpu.index * 0.4 + 0.3 * random.standard_normal(len(times)),
        "power_w": 120 + 480 * load,
        "utilization_ratio": load,
        "memory_used_bytes": np.full(len(times), 21.4e9),
    }
