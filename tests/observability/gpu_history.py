"""GPUs' minutes as a healthy host's would be: what tests of charts look at."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import numpy as np

from apps.fleet.models import Gpu
from apps.observability import rollups, samples


def fill(gpus: Iterable[Gpu], until: datetime, hours: float = 6.0) -> np.ndarray:
    """Give each GPU a point a minute for so many hours up to the minute of `until`; returns the minutes (unix s)."""
    last = int(until.replace(second=0, microsecond=0).timestamp())
    minutes = np.arange(last - int(timedelta(hours=hours).total_seconds()), last + 1, 60)
    day = np.sin(2 * np.pi * (minutes % 86_400) / 86_400)
    for gpu in gpus:
        random = np.random.default_rng(gpu.index)
        load = np.clip(0.5 + 0.2 * day + 0.03 * random.standard_normal(len(minutes)), 0, 1)
        columns = {
            "temperature_c": 56 + 9 * load + gpu.index * 0.4 + 0.3 * random.standard_normal(len(minutes)),
            "power_w": 120 + 480 * load,
            "utilization_ratio": load,
            "memory_used_bytes": np.full(len(minutes), 21.4e9),
        }
        samples.copy_history(gpu.number, columns, minutes.astype("datetime64[s]"), gpu.simulated)
    rollups.refresh(until + timedelta(minutes=2))
    return minutes
