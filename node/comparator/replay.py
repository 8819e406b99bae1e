"""One mirrored request, asked of baseline and candidate one after the other, as one row."""

from __future__ import annotations

import http.client
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.comparator.config import Pairing, Side
from node.comparator.similarity import similarity
from node.wire.client import UnixClient
from protocol.telemetry_pb2 import ComparisonRow

SAMPLE_CHARS = 200
_TIMEOUT_S = 5.0
_REPLAY = {"content-type": "application/json", "x-farrier-replay": "1"}
# An engine that answers so is busy with clients: it says nothing about the version.
_BUSY_CODES = {"queue_full", "overloaded"}
_UNREACHABLE = 503


@dataclass(frozen=True)
class Mirrored:
    """A request as the gateway's mirror sent it."""

    model: str
    request_id: str
    body: bytes
    time_unix_us: int


@dataclass(frozen=True)
class Outcome:
    """One side's answer. `latency_us` leaves out what the engine let the replay wait behind clients."""

    status: int
    latency_us: int
    outputs: list[Mapping[str, Any]]
    code: str = ""
    digest: str = ""

    @property
    def is_reached(self) -> bool:
        """Whether an engine answered at all."""
        return bool(self.digest)


class Replayer:
    """Keeps a connection to every engine that it asks."""

    def __init__(self) -> None:
        self._clients: dict[Path, UnixClient] = {}

    def ask(self, side: Side, mirrored: Mirrored) -> Outcome:
        """Send the request to one side; a side that can't be reached counts as status 503."""
        client = self._clients.setdefault(side.socket, UnixClient(side.socket, timeout_s=_TIMEOUT_S))
        path = f"/v2/models/{mirrored.model}/infer"
        started_s = time.perf_counter()
        try:
            answer = client.request("POST", path, mirrored.body, {**_REPLAY, "x-request-id": mirrored.request_id})
            document = answer.json()
        except (OSError, http.client.HTTPException, ValueError) as error:
            return Outcome(_UNREACHABLE, _us(started_s), [], f"unreachable: {error}")
        queue_us = int(answer.headers.get("x-farrier-queue-us", "0"))
        return Outcome(
            status=answer.status,
            latency_us=max(_us(started_s) - queue_us, 0),
            outputs=document.get("outputs", []),
            code=document.get("code", ""),
            digest=answer.headers.get("x-farrier-digest", ""),
        )

    def forget(self, kept: set[Path]) -> None:
        """Close connections to sockets that no pairing names any more."""
        for path in self._clients.keys() - kept:
            self._clients.pop(path).close()


def judge(pairing: Pairing, mirrored: Mirrored, baseline: Outcome, candidate: Outcome) -> ComparisonRow | str:
    """The row that two outcomes make, or a word for why they make none.

    "busy": an engine turned the replay away, or the baseline is the one that failed to answer, so that nothing can be
    said about the candidate; "stale": another version answered than the pairing names; "refused": both refused the
    request alike, the client is at fault.
    """
    if not baseline.is_reached or baseline.status in {429, 503} or candidate.code in _BUSY_CODES:
        return "busy"
    if baseline.digest != pairing.baseline.digest or (
        candidate.is_reached and candidate.digest != pairing.candidate.digest
    ):
        return "stale"
    if 400 <= baseline.status < 500 and candidate.status == baseline.status:
        return "refused"
    is_pair = baseline.status == 200 and candidate.status == 200
    items, sample = _describe(mirrored.body)
    return ComparisonRow(
        request_id=mirrored.request_id,
        time_unix_us=mirrored.time_unix_us,
        model=mirrored.model,
        rollout=pairing.rollout,
        stage=pairing.stage,
        attempt=pairing.attempt,
        deployment=pairing.deployment,
        baseline_version=pairing.baseline.version,
        candidate_version=pairing.candidate.version,
        similarity=similarity(baseline.outputs, candidate.outputs) if is_pair else math.nan,
        baseline_us=baseline.latency_us,
        candidate_us=candidate.latency_us,
        baseline_status=baseline.status,
        candidate_status=candidate.status,
        batch_size=items,
        sample=sample,
    )


def _describe(body: bytes) -> tuple[int, str]:
    """(items, beginning of the first input) of a request that an engine has accepted."""
    try:
        first = json.loads(body)["inputs"][0]
        items, data = int(first["shape"][0]), first["data"]
    except (ValueError, KeyError, IndexError, TypeError):
        return 0, ""
    text = data[0] if isinstance(data[0], str) else json.dumps(data[:SAMPLE_CHARS], separators=(",", ":"))
    return items, text[:SAMPLE_CHARS]


def _us(started_s: float) -> int:
    return int((time.perf_counter() - started_s) * 1_000_000)
