"""The hardware as the agent knows it: finds the GPUs, keeps them sampled, judges them, samples the engines.

The loop calls `tick` about once a second; the sampling itself has a thread of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from node.agent.hardware.conditions import Look, Memory, remember, reports, sampled
from node.agent.hardware.devices import find
from node.agent.hardware.engines import EngineHealth, EngineSampler
from node.agent.hardware.packed import GPU_PREFIX, PackedWriter
from node.agent.hardware.reading import COLUMN, Reader
from node.agent.hardware.sampler import EVENTS, Sampler, Seen, XidEvents
from node.agent.home import Home
from node.agent.settings import Settings
from protocol.messages import ConditionReport

log = logging.getLogger(__name__)

STUCK_S = 5.0  # a driver call that takes longer has the thread to itself from then on
JUDGE_EVERY_S = 1.0


class Hardware:
    """GPUs and engines of one home, sampled into its spool. `now` is the wall clock."""

    def __init__(self, settings: Settings, home: Home, *, now: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._home = home
        self._now = now
        self.devices = find(settings, now)
        self._engines = EngineSampler(home.spool, now)
        self._readers = [Reader(device) for device in self.devices.gpus]
        self._seen = {device.uuid: Seen() for device in self.devices.gpus}
        self._memories = {device.index: Memory() for device in self.devices.gpus}
        self._events = XidEvents(self._readers) if self._readers else None
        self.sampler: Sampler | None = None
        self._stuck: list[tuple[Sampler, int]] = []  # abandoned, with the GPU that holds each
        self._conditions: list[ConditionReport] = []
        self._judged_s = self._started_s = time.monotonic()
        self._compute: tuple[float, float] | None = None
        self._lost_rows = 0

    @property
    def lost_rows(self) -> int:
        """Samples that could not be written since the agent started."""
        running = self.sampler.writer.lost if self.sampler is not None else 0
        return self._lost_rows + running + self._engines.lost_rows

    def facts(self) -> dict[str, Any]:
        """What the control plane is told of the GPUs, as part of the host's facts."""
        is_simulated = self.devices.simulated is not None
        facts: dict[str, Any] = {"gpus": [gpu.facts(simulated=is_simulated) for gpu in self.devices.gpus]}
        return facts | ({"driver": self.devices.driver} if self.devices.driver else {})

    def start(self) -> None:
        """Begin to sample."""
        if self._readers:
            self._start_sampler(self._readers, self._events)

    def stop(self) -> None:
        """Sample no more, and leave what was sampled to the shipper."""
        if self.sampler is not None:
            self.sampler.stop()
            self.sampler.join(1.0)
            self.sampler.writer.publish()
        self._engines.publish()

    def tick(self, now_s: float, engines: Iterable[EngineHealth]) -> None:
        """Look after the sampling, sample the engines, judge the GPUs; cheap when called too early."""
        if now_s - self._judged_s < JUDGE_EVERY_S:
            return
        self._judged_s = now_s
        self._engines.sample(engines)
        if self.sampler is not None:
            self._free_peers(self.sampler, now_s)
        for device in self.devices.gpus:
            seen = self._seen[device.uuid]
            throttle, xids = seen.take()
            look = Look(
                temperature_c=seen.row[COLUMN["temperature_c"]],
                ecc_uncorrected=seen.row[COLUMN["ecc_uncorrected_total"]],
                throttle=throttle,
                xids=tuple(xids),
                recovery_action=seen.recovery_action,
                gone=seen.gone,
            )
            self._memories[device.index] = remember(self._memories[device.index], look, now_s)
        self._conditions = self._judge(now_s)

    def conditions(self) -> list[ConditionReport]:
        """The standing conditions, as of the last tick; none where no GPU was looked for."""
        return self._conditions

    def publish(self) -> None:
        """Let the shipper have all samples so far."""
        if self.sampler is not None:
            self.sampler.writer.publish()
        self._engines.publish()

    def note_compute(self, compute_s: float) -> None:
        """Tell how long this node's engines have computed in all: simulated boards warm up by it."""
        now_s = time.monotonic()
        before, self._compute = self._compute, (now_s, compute_s)
        if self.devices.simulated is not None and before is not None and now_s > before[0]:
            self.devices.simulated.busy_share = (compute_s - before[1]) / (now_s - before[0])

    def _judge(self, now_s: float) -> list[ConditionReport]:
        if not (self.devices.gpus or self.devices.error or self.devices.unreadable):
            return []
        last_s = max((seen.at_s for seen in self._seen.values()), default=now_s)
        everything_gone = all(seen.gone for seen in self._seen.values())
        silent_s = 0.0 if everything_gone else now_s - max(last_s, self._started_s)
        found = [sampled(self.devices.error, self.devices.unreadable, silent_s)]
        if self.devices.gpus or self.devices.unreadable:
            closed = {index: Memory(gone=why) for index, why in self.devices.unreadable}
            simulated = self.devices.simulated
            script = simulated.script() if simulated is not None else ""
            found += reports(self._memories | closed, is_simulated=simulated is not None, script=script)
        return found

    def _start_sampler(self, readers: list[Reader], events: XidEvents | None) -> None:
        writer = PackedWriter(self._home.spool, GPU_PREFIX, simulated=self.devices.simulated is not None)
        self.sampler = Sampler(
            readers, self._seen, events, writer, interval_s=self._settings.sample_interval_s, now=self._now
        )
        self.sampler.start()

    def _free_peers(self, sampler: Sampler, now_s: float) -> None:
        """Abandon a thread that a driver call holds, and take a GPU back once its call has returned."""
        busy = sampler.busy_with
        is_stuck = busy is not None and now_s - busy[1] > STUCK_S
        back = [entry for entry in self._stuck if not entry[0].is_running]
        if not is_stuck and not back:
            return
        self._stuck = [entry for entry in self._stuck if entry not in back]
        sampler.stop()
        if busy is not None and is_stuck:
            log.error("the driver doesn't answer for %s", "events" if busy[0] == EVENTS else f"GPU {busy[0]}")
            self._stuck.append((sampler, busy[0]))
        else:
            sampler.join(1.0)
        self._lost_rows += sampler.writer.lost
        sampler.writer.publish()
        held = {index for _, index in self._stuck}
        for device in self.devices.gpus:
            if device.index in held:
                self._seen[device.uuid].gone = f"its driver call doesn't return for {STUCK_S:.0f} s"
        events = None if EVENTS in held else self._events
        self._start_sampler([reader for reader in self._readers if reader.device.index not in held], events)
