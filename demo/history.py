"""Seven days of past for simulated GPUs, one value a minute, so that the detector knows their day and week.

`python -m demo.history`, with a worker's environment. It is made by the same model as what is sampled live, marked as
simulated like it, and written once: a GPU that has a past keeps it.
"""

from __future__ import annotations

# ruff: noqa: E402 the models can be imported once Django is set up, not before
import os
import sys
import time
from datetime import datetime, timedelta

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

import django
import numpy as np

django.setup()

from django.conf import settings

from apps.fleet.models import Gpu
from apps.observability import samples
from node.agent.hardware.simulated import model

PAST = timedelta(days=7)
MINUTE = timedelta(minutes=1)
PATIENCE_S = 300.0
POLL_S = 2.0


def main() -> int:
    """Wait for the nodes' GPUs and give each simulated one its past; returns 0."""
    wanted = settings.FARRIER.nodes
    deadline = time.monotonic() + PATIENCE_S
    while Gpu.objects.filter(simulated=True).values("node").distinct().count() < wanted:
        if time.monotonic() > deadline:
            sys.exit("The nodes list no GPUs; see var/logs.")
        time.sleep(POLL_S)
    begun, written = time.monotonic(), 0
    for gpu in Gpu.objects.filter(simulated=True).select_related("node").order_by("node__name", "index"):
        written += _write(gpu.number, gpu.node.name, gpu.index, gpu.node.created_at)
    sys.stdout.write(f"{written:,} minutes of simulated past written in {time.monotonic() - begun:.0f} s\n")
    return 0


def _write(number: int, node: str, index: int, enrolled: datetime) -> int:
    """Write one GPU's minutes up to its node's enrolment; returns how many."""
    end = enrolled.replace(second=0, microsecond=0)
    start = end - PAST
    known = samples.gpu_points("temperature_c", [number], start, end, step=timedelta(hours=1))
    if len(known[0].times) if known else 0:
        return 0
    times = start.timestamp() + MINUTE.total_seconds() * np.arange(PAST // MINUTE)
    samples.copy_history(number, model.history(node, index, start, end), times, simulated=True)
    return len(times)


if __name__ == "__main__":
    sys.exit(main())
