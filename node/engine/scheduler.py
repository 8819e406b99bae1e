"""Which rows run next: a bounded queue in front of one compute thread that is never idle while rows wait.

Work-conserving: the thread takes what is there the moment it is free; requests gather only while it computes. So light
load never waits for a batch to fill, heavy load fills batches by itself. Replays of the comparator run only when no
client waits, and in batches of their own, so that their times compare.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from node.engine.errors import RequestError
from node.engine.model import BatchResult, ServedModel
from node.engine.preprocess import Prepared

log = logging.getLogger(__name__)

_IDLE_TICK_S = 0.25


@dataclass(frozen=True)
class Part:
    """Where some rows of a job lie: rows [start, stop) of the batch."""

    result: BatchResult
    start: int
    stop: int


@dataclass(eq=False)
class Job:
    """One request's rows on their way through the compute thread. The event loop owns it, except `next_row`."""

    prepared: Prepared
    key: tuple[tuple[int, ...], ...]
    future: asyncio.Future[None]
    queued_s: float
    is_replay: bool = False
    next_row: int = 0
    started_s: float = 0.0
    is_abandoned: bool = False
    parts: list[Part] = field(default_factory=list)

    @property
    def rows_done(self) -> int:
        """Rows that have their result."""
        return sum(part.stop - part.start for part in self.parts)


@dataclass(frozen=True)
class _Slice:
    job: Job
    start: int
    stop: int


class Scheduler:
    """Runs `model` in a thread of its own; all else happens in the event loop in which the scheduler was made."""

    def __init__(self, model: ServedModel, *, capacity_rows: int = 1000, deadline_s: float = 3.0) -> None:
        self._model = model
        self._capacity_rows = capacity_rows
        self._deadline_s = deadline_s
        self._waiting: deque[Job] = deque()
        self._replays: deque[Job] = deque()
        self._queued_rows = 0
        self._row_s = 0.0
        self._changed = threading.Condition()
        self._is_stopping = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self.last_tick_s = time.monotonic()

    def start(self) -> None:
        """Start the compute thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the compute thread after the batch it is in."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join()

    def submit(self, prepared: Prepared, *, is_replay: bool = False) -> Job:
        """Queue a request's rows; await the job's `future`, then read its `parts`.

        Raises RequestError 429: `queue_full`, or `overloaded` where the rows before it take longer than the deadline.
        """
        rows = len(prepared.rows)
        job = Job(
            prepared, self._model.shape_key(prepared.rows[0]), self._loop.create_future(), time.monotonic(), is_replay
        )
        with self._changed:
            if self._queued_rows + rows > self._capacity_rows:
                sentence = f"{self._queued_rows} rows wait already, {self._capacity_rows} at most; try again later."
                raise RequestError(429, "queue_full", sentence)
            if self._queued_rows * self._row_s > self._deadline_s:
                sentence = f"The queue is longer than the deadline of {self._deadline_s:g} s; try again later."
                raise RequestError(429, "overloaded", sentence)
            (self._replays if is_replay else self._waiting).append(job)
            self._queued_rows += rows
            self._changed.notify()
        return job

    @property
    def queued_rows(self) -> int:
        """Rows that wait; read without the lock, for whoever only wants to know about how many."""
        return self._queued_rows

    def abandon(self, job: Job) -> None:
        """Nobody waits for this job any more: rows that haven't started are left out."""
        job.is_abandoned = True

    # compute thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (batch := self._take()) and not self._is_stopping:
                    self._changed.wait(_IDLE_TICK_S)
                    self.last_tick_s = time.monotonic()
            if not batch:
                return
            self._compute(batch)
            self.last_tick_s = time.monotonic()

    def _take(self) -> list[_Slice]:
        """The next batch: rows in the order of arrival, of one shape key, clients before replays."""
        batch = self._take_from(self._waiting, len(self._waiting))
        return batch or self._take_from(self._replays, 1)

    def _take_from(self, queue: deque[Job], most_jobs: int) -> list[_Slice]:
        batch: list[_Slice] = []
        room = self._model.batch_rows
        while queue and room and len(batch) < most_jobs:
            job = queue[0]
            if job.is_abandoned:
                self._queued_rows -= len(job.prepared.rows) - job.next_row
                queue.popleft()
                continue
            if batch and job.key != batch[0].job.key:
                break
            start = job.next_row
            job.next_row = min(start + room, len(job.prepared.rows))
            batch.append(_Slice(job, start, job.next_row))
            room -= job.next_row - start
            self._queued_rows -= job.next_row - start
            if job.next_row == len(job.prepared.rows):
                queue.popleft()
        return batch

    def _compute(self, batch: list[_Slice]) -> None:
        started_s = time.monotonic()
        for item in batch:
            item.job.started_s = item.job.started_s or started_s
        try:
            result = self._infer(batch)
        except Exception as error:
            if len(batch) > 1:
                # one request's rows may be at fault: the others must not pay for it
                for item in batch:
                    self._compute([item])
                return
            log.exception("an inference failed")
            self._loop.call_soon_threadsafe(self._fail, batch[0].job, error)
            return
        rows_s = (time.monotonic() - started_s) / result.rows
        self._row_s = rows_s if self._row_s == 0.0 else 0.9 * self._row_s + 0.1 * rows_s
        self._loop.call_soon_threadsafe(self._deliver, batch, result)

    def _infer(self, batch: Sequence[_Slice]) -> BatchResult:
        return self._model.infer([row for item in batch for row in item.job.prepared.rows[item.start : item.stop]])

    # event loop again

    def _deliver(self, batch: list[_Slice], result: BatchResult) -> None:
        at = 0
        for item in batch:
            stop = at + item.stop - item.start
            item.job.parts.append(Part(result, at, stop))
            at = stop
            if item.job.rows_done == len(item.job.prepared.rows) and not item.job.future.done():
                item.job.future.set_result(None)

    def _fail(self, job: Job, error: Exception) -> None:
        job.is_abandoned = True
        if not job.future.done():
            job.future.set_exception(error)
