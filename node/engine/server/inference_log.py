"""One row per request, written to the spool by the process that answered it."""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass

import numpy as np

from node.engine.identity import Identity
from node.engine.scheduler import Job
from node.wire.http import HttpRequest
from protocol.spool import SpoolWriter
from protocol.telemetry_pb2 import InferenceRow

_MAX_TEXT_CHARS = 128
_MAX_US = 2**32 - 1


@dataclass
class Record:
    """What is known of a request so far; times in seconds."""

    request: HttpRequest
    request_id: str
    status: int = 0
    error_code: str = ""
    input_sha256: bytes = b""
    items: int = 0
    tokens: int = 0
    preprocess_s: float = 0.0
    render_s: float = 0.0
    job: Job | None = None


class InferenceLog:
    """Turns records into spooled InferenceRow messages and counts them. Event loop only."""

    def __init__(self, identity: Identity, spool: SpoolWriter) -> None:
        self._identity = identity
        self._digest = bytes.fromhex(identity.digest)
        self._spool = spool
        self.requests = 0
        self.errors = 0

    def add(self, record: Record) -> None:
        """Write the row of a request that has been answered (or given up)."""
        self.requests += 1
        # a client's mistake isn't the engine's error
        self.errors += record.status >= 500
        self._spool.append(self._row(record))

    def tick(self) -> None:
        """Publish rows that have waited long enough; call it a few times a second."""
        self._spool.rotate_if_due()

    def close(self) -> None:
        """Publish what is left."""
        self._spool.close()

    def _row(self, record: Record) -> InferenceRow:
        total_s = time.monotonic() - record.request.received_s
        user = record.request.headers.get("x-user-id", "")
        row = InferenceRow(
            request_id=record.request_id,
            time_unix_us=int((time.time() - total_s) * 1_000_000),
            model=self._identity.model,
            version=self._identity.version,
            digest=self._digest,
            deployment=self._identity.deployment,
            status=record.status,
            error_code=record.error_code,
            user_key=hashlib.sha256(user.encode()).digest()[:16] if user else b"",
            session_id=record.request.headers.get("x-session-id", "")[:_MAX_TEXT_CHARS],
            input_sha256=record.input_sha256,
            input_items=record.items,
            input_tokens=record.tokens,
            preprocess_us=_us(record.preprocess_s),
            postprocess_us=_us(record.render_s),
            total_us=_us(total_s),
            entropy=math.nan,
            score=math.nan,
        )
        if record.job is not None and record.job.parts:
            _add_job(row, record.job, record.render_s)
        return row


def _add_job(row: InferenceRow, job: Job, render_s: float) -> None:
    """What the compute thread knows. A request of several rows has the means of its rows, and no label."""
    row.queue_us = _us(job.started_s - job.queued_s)
    row.compute_us = _us(sum(part.result.compute_s for part in job.parts))
    row.postprocess_us = _us(render_s + sum(part.result.postprocess_s for part in job.parts))
    row.batch_size = max(part.result.rows for part in job.parts)
    entropies = [part.result.outputs.entropy for part in job.parts]
    scores = [part.result.outputs.score for part in job.parts]
    if entropies[0] is not None and scores[0] is not None:
        spans = [slice(part.start, part.stop) for part in job.parts]
        row.entropy = float(
            np.mean(np.concatenate([e[s] for e, s in zip(entropies, spans, strict=True) if e is not None]))
        )
        row.score = float(np.mean(np.concatenate([e[s] for e, s in zip(scores, spans, strict=True) if e is not None])))
    labels = job.parts[0].result.outputs.labels
    if labels is not None and len(job.prepared.rows) == 1:
        row.predicted_label = labels[job.parts[0].start]


def _us(seconds: float) -> int:
    return min(max(int(seconds * 1_000_000), 0), _MAX_US)
