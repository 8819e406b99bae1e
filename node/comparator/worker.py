"""The mirror queue and the thread that works it off, one replay at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque

from node.comparator.config import Config, ConfigFile, Pairing
from node.comparator.replay import Mirrored, Replayer, judge
from protocol.spool import SpoolWriter
from protocol.telemetry_pb2 import ComparisonRow

log = logging.getLogger(__name__)

CAPACITY = 256
CAPACITY_BYTES = 64 << 20
_TICK_S = 0.25


class Worker:
    """`offer` takes mirrored requests from the event loop; a thread replays, compares and writes rows.

    Whatever can't be compared is counted, never silently lost: `counts` has received, compared, dropped (the queue was
    full, an engine was busy, the pairing changed underneath, or the comparison failed), refused (the client's fault)
    and unmatched (no such pairing).
    """

    def __init__(self, config: ConfigFile) -> None:
        self._config = config
        self._queue: deque[Mirrored] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._must_stop = False
        self._dropped: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._replayer = Replayer()
        self._spool = SpoolWriter(config.current.spool_dir, "cmp")
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)
        self.last_tick_s = time.monotonic()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the replay in hand, publish the rows, end; what is still queued is left out."""
        with self._changed:
            self._must_stop = True
            self._changed.notify()
        self._thread.join()
        self._spool.close()

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def lost_rows(self) -> int:
        """Rows that the spool could not write."""
        return self._spool.lost

    def offer(self, mirrored: Mirrored) -> None:
        """Queue a mirrored request, or count it as dropped; never blocks for long."""
        with self._changed:
            self.counts["received"] += 1
            if mirrored.model not in self._config.current.models:
                self.counts["unmatched"] += 1
            elif len(self._queue) >= CAPACITY or self._queued_bytes + len(mirrored.body) > CAPACITY_BYTES:
                self._drop(mirrored.model)
            else:
                self._queue.append(mirrored)
                self._queued_bytes += len(mirrored.body)
                self._changed.notify()

    def _drop(self, model: str) -> None:
        self.counts["dropped"] += 1
        self._dropped[model] += 1

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._queue and not self._must_stop:
                    self._changed.wait(_TICK_S)
                if self._must_stop:
                    return
                mirrored = self._queue.popleft() if self._queue else None
                self._queued_bytes -= len(mirrored.body) if mirrored else 0
            self._spool.rotate_if_due()
            config = self._config.refresh()
            self._follow(config)
            if mirrored is not None:
                self._try(config, mirrored)
            self.last_tick_s = time.monotonic()

    def _follow(self, config: Config) -> None:
        pairings = config.models.values()
        self._replayer.forget({side.socket for pair in pairings for side in (pair.baseline, pair.candidate)})
        if config.spool_dir != self._spool.directory:
            self._spool.close()
            self._spool = SpoolWriter(config.spool_dir, "cmp")

    def _try(self, config: Config, mirrored: Mirrored) -> None:
        try:
            self._compare(config, mirrored)
        except Exception:
            # an answer that we can't read must not end the comparing of all others
            log.exception("the comparison of request %s failed", mirrored.request_id)
            self._count("failed", mirrored.model)

    def _compare(self, config: Config, mirrored: Mirrored) -> None:
        pairing = config.models.get(mirrored.model)
        if pairing is None:
            self._count("unmatched", mirrored.model)
            return
        baseline = self._replayer.ask(pairing.baseline, mirrored)
        candidate = self._replayer.ask(pairing.candidate, mirrored)
        result = judge(pairing, mirrored, baseline, candidate)
        if not candidate.is_reached and self._has_changed(pairing, mirrored.model):
            # the agent took the candidate away meanwhile: its absence is no failure of the version
            result = "stale"
        if isinstance(result, str):
            self._count(result, mirrored.model)
            return
        self._write(result)

    def _has_changed(self, pairing: Pairing, model: str) -> bool:
        return self._config.refresh().models.get(model) != pairing

    def _count(self, why: str, model: str) -> None:
        with self._changed:
            if why in {"refused", "unmatched"}:
                self.counts[why] += 1
            else:
                self._drop(model)

    def _write(self, row: ComparisonRow) -> None:
        with self._changed:
            row.dropped_before = self._dropped[row.model]
            self.counts["compared"] += 1
        if self._spool.append(row):
            with self._changed:
                self._dropped[row.model] -= row.dropped_before
