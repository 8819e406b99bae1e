"""Telemetry as engines and comparators write it."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID, uuid4

import numpy as np

from apps.fleet.hardware import store_gpus
from apps.fleet.models import Node
from protocol.telemetry_pb2 import Column, ComparisonRow, EngineSamples, GpuSamples, InferenceRow, TelemetryBatch
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


def give_gpus(agent: Agent, count: int = 2) -> dict[str, int]:
    """Make the agent's node list GPUs, as its enrolment would; their numbers by UUID."""
    node = Node.objects.get(pk=agent.node)
    listed = [
        {
            "uuid": f"GPU-{node.name}-{index}",
            "index": index,
            "name": "H100",
            "memory_bytes": 80 << 30,
            "simulated": True,
        }
        for index in range(count)
    ]
    store_gpus(node, {"gpus": listed})
    return dict(node.gpus.order_by("index").values_list("uuid", "number"))


def gpu_block(gpus: Any, times_s: Any, index: Any = None, *, simulated: bool = True, **columns: Any) -> GpuSamples:
    """Samples at `times_s` (Unix seconds) of GPUs by UUID; `index` says whose row each is, else the first one's."""
    times_us = np.round(np.asarray(times_s, np.float64) * 1e6).astype("<i8")
    index = np.zeros(len(times_us), np.uint8) if index is None else np.asarray(index, np.uint8)
    return GpuSamples(
        gpus=list(gpus),
        simulated=simulated,
        time_unix_us=times_us.tobytes(),
        gpu=index.tobytes(),
        columns=_columns(len(times_us), columns),
    )


def engine_block(deployments: Any, times_s: Any, **columns: Any) -> EngineSamples:
    """Samples of the first of these deployments."""
    times_us = np.round(np.asarray(times_s, np.float64) * 1e6).astype("<i8")
    return EngineSamples(
        deployments=list(deployments),
        time_unix_us=times_us.tobytes(),
        deployment=bytes(len(times_us)),
        columns=_columns(len(times_us), columns),
    )


def _columns(rows: int, columns: dict[str, Any]) -> list[Column]:
    return [
        Column(name=name, values=np.broadcast_to(np.asarray(values, "<f4"), rows).tobytes())
        for name, values in columns.items()
    ]


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
