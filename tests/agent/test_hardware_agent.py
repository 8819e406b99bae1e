"""The whole agent with simulated GPUs: what it tells, what arrives, and that kills neither lose nor double a sample."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from node.agent.hardware.packed import read_packed
from protocol.telemetry_pb2 import TelemetryBatch
from tests.agent.node import node_of, until
from tests.agent.plane import Plane


def rows(plane: Plane) -> list[tuple[int, str]]:
    """(time, GPU) of every sample received."""
    return [
        (int(at), samples.gpus[gpu])
        for samples in plane.gpu_samples()
        for at, gpu in zip(np.frombuffer(samples.time_unix_us, "<i8"), samples.gpu, strict=True)
    ]


def xids(plane: Plane) -> set[float]:
    """Every Xid that a sample told."""
    columns = [column for samples in plane.gpu_samples() for column in samples.columns if column.name == "xid"]
    return {float(xid) for column in columns for xid in np.frombuffer(column.values, "<f4")}


def waiting(home: Path) -> list[int]:
    """Times of the samples that lie in a dead agent's spool and outbox."""
    spooled = [read_packed(path) for path in home.glob("spool/gpu-*")]
    batches = [TelemetryBatch.FromString(path.read_bytes()) for path in home.glob("outbox/*.pb")]
    packed = [samples.time_unix_us for batch in batches for samples in batch.gpu]
    found = [part.rows["time_unix_us"] for part in spooled if part is not None]
    return [int(at) for times in (*found, *(np.frombuffer(raw, "<i8") for raw in packed)) for at in times]


@pytest.mark.crash
def test_gpus_are_told_sampled_and_judged_across_kills(plane: Plane, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.json"
    scenario.write_text("[]")
    flags = [
        "--hardware",
        "simulated",
        "--simulated-gpus",
        "4",
        "--sample-interval",
        "0.05",
        "--scenario",
        str(scenario),
    ]
    with node_of(plane, tmp_path) as node:
        node.start(*flags)
        until(lambda: plane.gpu_samples(), "samples arrive")
        told = plane.polls[0].hardware
        assert told is not None
        assert [(gpu["index"], gpu["simulated"]) for gpu in told["gpus"]] == [(n, True) for n in range(4)]
        assert told["driver"] == "simulated"
        until(lambda: len(plane.polls) > 1, "it polls again")
        assert plane.polls[1].hardware is None

        left: list[int] = []
        for _ in range(4):
            seen = len(plane.batches)
            until(lambda seen=seen: len(plane.batches) > seen, "more arrives")
            node.kill_agent()
            left += waiting(node.home.path)
            node.start(*flags)
        assert left

        started = len(plane.batches)
        until(lambda: len(plane.batches) > started + 1, "the last agent samples")
        fault = {"node": "node-1", "fault": "xid", "xid": 79, "gpus": [2], "at_s": 0}
        scenario.write_text(json.dumps([fault]))
        until(lambda: (c := plane.conditions().get("GpuXid")) and c.status == "true", "the Xid is told")
        assert "GPU 2 (Xid 79)" in plane.conditions()["GpuXid"].message
        assert plane.conditions()["HardwareSimulated"].status == "true"
        until(lambda: set(left) <= {at for at, _ in rows(plane)}, "what lay on disk arrives")
        until(lambda: 79.0 in xids(plane), "so does the sample with the Xid")
        time.sleep(0.5)
    found = rows(plane)
    assert len(found) == len(set(found))
    assert all(samples.simulated for samples in plane.gpu_samples())
