"""Telemetry as engines and comparators write it."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID, uuid4

from protocol.telemetry_pb2 import ComparisonRow, InferenceRow, TelemetryBatch
from tests.fleet.agents import Agent

DEPLOYMENT = "01900000-0000-7000-8000-00000000000d"
ROLLOUT = "01900000-0000-7000-8000-00000000000a"


def unix_us(ago_s: float = 0.0) -> int:
    return round((time.time() - ago_s) * 1e6)


def inference(request_id: str = "", ago_s: float = 1.0, **changes: Any) -> InferenceRow:
    """One request; `ago_s` is how long ago it arrived."""
    fields: dict[str, Any] = {
        "request_id": request_id or uuid4().hex,
        "time_unix_us": unix_us(ago_s),
        "model": "digits",
        "version": 1,
        "digest": b"\x01" * 64,
        "deployment": DEPLOYMENT,
        "status": 200,
        "batch_size": 4,
        "queue_us": 10,
        "compute_us": 900,
        "total_us": 1_000,
        "entropy": 0.5,
        "score": 0.9,
        "predicted_label": "7",
    }
    return InferenceRow(**(fields | changes))


def comparison(request_id: str = "", ago_s: float = 1.0, **changes: Any) -> ComparisonRow:
    """One mirrored request."""
    fields: dict[str, Any] = {
        "request_id": request_id or uuid4().hex,
        "time_unix_us": unix_us(ago_s),
        "model": "digits",
        "rollout": ROLLOUT,
        "stage": 0,
        "attempt": 1,
        "deployment": DEPLOYMENT,
        "baseline_version": 1,
        "candidate_version": 2,
        "similarity": 0.99,
        "baseline_us": 1_000,
        "candidate_us": 800,
        "baseline_status": 200,
        "candidate_status": 200,
        "batch_size": 1,
        "sample": "A quick brown fox.",
    }
    return ComparisonRow(**(fields | changes))


def batch(agent: Agent, seq: int, *rows: InferenceRow | ComparisonRow, **changes: Any) -> TelemetryBatch:
    fields: dict[str, Any] = {"node": str(agent.node), "boot_id": str(agent.boot_id), "seq": seq}
    message = TelemetryBatch(**(fields | changes))
    for row in rows:
        (message.inference if isinstance(row, InferenceRow) else message.comparison).append(row)  # type: ignore[arg-type]
    return message


def send(agent: Agent, message: TelemetryBatch | bytes) -> Any:
    raw = message if isinstance(message, bytes) else message.SerializeToString()
    return agent.send("POST", "/agent/v1/telemetry", raw, kind="application/x-protobuf")


def node_ids(*agents: Agent) -> list[UUID]:
    return [agent.node for agent in agents]
