"""The thread that samples all GPUs on one schedule.

Rounds are due at start + n · interval: lateness never adds up, and a round that would come too late is left out. A GPU
that is lost or slow is left alone for a while, and one whose driver call never returns can't keep its peers: whoever
watches (monitor.py) abandons this thread to it and goes on with another for the rest.
"""

from __future__ import annotations

import ctypes
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml

from node.agent.hardware.devices import Device
from node.agent.hardware.packed import PackedWriter
from node.agent.hardware.reading import COLUMN, GONE, NOTHING, GpuGone, Reader

log = logging.getLogger(__name__)

LOST_AGAIN_S = 10.0  # between two looks at a lost GPU
SLOW_S = 0.25  # a GPU that takes longer to read is read so much more rarely that it costs its peers little
SLOW_SHARE = 10.0
EVENTS = -1  # stands for the wait for events where a GPU's index would
LATENESS_KEPT = 10_000
MAX_EVENTS = 100  # a round; a driver may tell the same Xid many thousand times


@dataclass
class Seen:
    """What was last seen of one GPU; `take` is the agent's loop's, the rest the sampler's."""

    row: list[float] = field(default_factory=NOTHING.copy)
    at_s: float = -math.inf  # monotonic, of the last good reading
    gone: str = ""  # why it doesn't answer
    recovery_action: float = 0.0
    throttle: int = 0  # bits since the last take
    xids: deque[int] = field(default_factory=lambda: deque(maxlen=100))  # since the last take

    def take(self) -> tuple[int, list[int]]:
        """(throttle bits, Xids) since the last call."""
        bits, self.throttle = self.throttle, 0
        return bits, [self.xids.popleft() for _ in range(len(self.xids))]


class XidEvents:
    """The driver's Xid events; where it has none to give, there are none."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._set: Any | None = None
        self._asked: set[str] = set()
        # not asked of the driver: a GPU that has just fallen off the bus doesn't tell its UUID any more
        self._uuids = {_pointer(reader.device.handle): reader.device.uuid for reader in readers}
        self._complaint = ""
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as failed:
            log.warning("the driver tells no Xids: %s", failed)
            return
        for reader in readers:
            self.ask_for(reader.device)

    def ask_for(self, device: Device) -> None:
        """Ask the driver to tell this GPU's Xids, once; of a GPU that is gone they can be asked for when it is back."""
        if self._set is None or device.uuid in self._asked:
            return
        self._asked.add(device.uuid)
        try:
            wanted = pynvml.nvmlDeviceGetSupportedEventTypes(device.handle) & pynvml.nvmlEventTypeXidCriticalError
            pynvml.nvmlDeviceRegisterEvents(device.handle, wanted, self._set)
        except pynvml.NVMLError as failed:
            log.warning("GPU %d tells no Xids: %s", device.index, failed)
            if failed.value in GONE:
                self._asked.discard(device.uuid)

    def take(self) -> list[tuple[str, int]]:
        """(GPU UUID, code) of what happened since the last call; never waits."""
        found: list[tuple[str, int]] = []
        while self._set is not None and len(found) < MAX_EVENTS:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError_Timeout:
                break
            except pynvml.NVMLError as failed:
                # so a driver may answer for all its GPUs when one is lost: the others' Xids still come, later
                if str(failed) != self._complaint:
                    log.warning("Xids can't be asked for at the moment: %s", failed)
                self._complaint = str(failed)
                break
            uuid = self._uuids.get(_pointer(event.device))
            if uuid is not None:
                found.append((uuid, int(event.eventData)))
        return found


class Sampler:
    """Samples these GPUs until stopped or abandoned. `now` is the wall clock, `clock` the monotonic one."""

    def __init__(
        self,
        readers: Sequence[Reader],
        seen: dict[str, Seen],
        events: XidEvents | None,
        writer: PackedWriter,
        *,
        interval_s: float,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.readers = list(readers)
        self.writer = writer
        self.busy_with: tuple[int, float] | None = None  # (GPU index, since) while a driver call runs
        self.lateness_s: deque[float] = deque(maxlen=LATENESS_KEPT)
        self.left_out = 0  # rounds
        self._seen = seen
        self._events = events
        self._interval_s = interval_s
        self._now = now
        self._clock = clock
        self._keys = [reader.device.uuid for reader in self.readers]
        self._not_before_s = dict.fromkeys(self._keys, -math.inf)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """Sample no more; a driver call that is going on is not waited for."""
        self._stop.set()

    @property
    def is_running(self) -> bool:
        """Whether its thread lives, be it inside a driver call that doesn't return."""
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        start_s = self._clock()
        number = 0
        while not self._stop.is_set():
            due_s = start_s + number * self._interval_s
            wait_s = due_s - self._clock()
            if wait_s > 0 and self._stop.wait(wait_s):
                return
            self.lateness_s.append(max(0.0, self._clock() - due_s))
            try:
                self.round()
            except Exception:
                # whatever it was, the next round may do better; that nothing comes is told as a condition
                log.exception("a round of samples failed")
            # the next one that is still to come
            following = max(number + 1, math.ceil((self._clock() - start_s) / self._interval_s))
            self.left_out += following - number - 1
            number = following

    def round(self) -> None:
        """Read every GPU once and write what they said."""
        xids = self._take_xids()
        at_us = round(self._now() * 1e6)  # of the whole round: its rows belong together
        rows: list[tuple[float, ...]] = []
        for position, reader in enumerate(self.readers):
            row = self._read(reader)
            if self._stop.is_set():
                return
            key = self._keys[position]
            xid = max(xids.get(key, ()), default=0)
            if row is None and not xid:
                continue
            # a GPU that fell off the bus has nothing to say but why
            values = row or NOTHING.copy()
            values[COLUMN["xid"]] = float(xid)
            rows.append((at_us, position, *values))
        self.writer.append_rows(self._keys, rows)

    def _take_xids(self) -> dict[str, list[int]]:
        if self._events is None:
            return {}
        found: dict[str, list[int]] = {}
        self.busy_with = (EVENTS, self._clock())
        for uuid, xid in self._events.take():
            log.error("GPU %s tells Xid %d", uuid, xid)
            found.setdefault(uuid, []).append(xid)
            if uuid in self._seen:
                self._seen[uuid].xids.append(xid)
        self.busy_with = None
        return found

    def _read(self, reader: Reader) -> list[float] | None:
        device = reader.device
        seen = self._seen[device.uuid]
        begin_s = self._clock()
        if begin_s < self._not_before_s[device.uuid]:
            return None
        self.busy_with = (device.index, begin_s)
        try:
            row = reader.read(begin_s)
        except GpuGone as gone:
            if not seen.gone:
                log.error("GPU %d is gone: %s", device.index, gone)
            seen.gone = str(gone)
            self._not_before_s[device.uuid] = begin_s + LOST_AGAIN_S
            return None
        finally:
            self.busy_with = None
        if self._events is not None:
            self._events.ask_for(device)
        took_s = self._clock() - begin_s
        if took_s > SLOW_S:
            self._not_before_s[device.uuid] = begin_s + SLOW_SHARE * took_s
        seen.row, seen.at_s, seen.gone, seen.recovery_action = row, begin_s, "", reader.recovery_action
        bits = row[COLUMN["throttle_reasons"]]
        if not math.isnan(bits):
            seen.throttle |= int(bits)
        return row


def _pointer(handle: Any) -> int:
    """What tells two handles of NVML apart."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
