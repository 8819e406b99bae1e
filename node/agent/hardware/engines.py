"""Samples of the engines, from what they told on their health sockets and what the kernel says of their memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from node.agent.hardware.packed import ENGINE_PREFIX, MAX_KEYS, PackedWriter

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class EngineHealth:
    """What a running engine said when it was last asked."""

    deployment: str
    pid: int
    requests: int
    errors: int
    queue_depth: float
    loop_age_s: float


class EngineSampler:
    """Writes one row an engine and call. Used by the agent's loop."""

    def __init__(self, spool: Path, now: Callable[[], float]) -> None:
        self._writer = PackedWriter(spool, ENGINE_PREFIX)
        self._now = now

    @property
    def lost_rows(self) -> int:
        """Samples that could not be written."""
        return self._writer.lost

    def sample(self, engines: Iterable[EngineHealth]) -> None:
        """Write what the engines are like now, in the order of protocol.metrics.ENGINE."""
        listed = sorted(engines, key=lambda engine: engine.deployment)[:MAX_KEYS]
        keys = list(dict.fromkeys(engine.deployment for engine in listed))
        at_us = round(self._now() * 1e6)
        rows = [
            (
                at_us,
                keys.index(engine.deployment),
                float(engine.requests),
                float(engine.errors),
                engine.queue_depth,
                engine.loop_age_s,
                resident_bytes(engine.pid),
            )
            for engine in listed
        ]
        self._writer.append_rows(keys, rows)

    def publish(self) -> None:
        """Let the shipper have what was written so far."""
        self._writer.publish()


def resident_bytes(pid: int) -> float:
    """Resident memory of a process, with what it shares; NaN when it is gone."""
    try:
        return float(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return math.nan
