"""What it costs an agent to watch eight GPUs every 100 ms: share of a core, and how late the rounds are.

Ours and the peer sample the same simulated GPUs through the same pynvml calls, spool what they read, and every five
seconds make a batch of it on disk as the agent does, each in a process of its own, in turns. Ours appends rows of a
fixed size and ships columns; the peer writes a protobuf message a row through SpoolWriter and ships those. Both pay for
the simulated library as well. A real driver answers slower, but then it is the driver that works.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from node.agent.client import ControlPlane, Credential
from node.agent.files import sync_folder, write_atomically, write_json
from node.agent.gateway import Listen
from node.agent.hardware.monitor import Hardware
from node.agent.home import Home
from node.agent.identity import load_or_create_key
from node.agent.settings import HardwareMode, Settings
from node.agent.telemetry import Boot, Outbox, Shipper
from protocol.metrics import GPU
from protocol.spool import SpoolWriter, read_messages

NAME = "telemetry_cost"
GPUS, INTERVAL_S, SHIP_EVERY_S = 8, 0.1, 5.0
RUNS, RUN_S = 3, 15.0
MAX_SHARE, MAX_LATE_S = 0.03, 0.010


def main() -> int:
    """Run both in turns, print the medians and the verdict."""
    runs: dict[str, list[dict[str, float]]] = {"packed": [], "messages": []}
    for _ in range(RUNS):
        for kind, found in runs.items():
            child = [sys.executable, "-m", "benchmarks.telemetry_cost", kind]
            found.append(json.loads(subprocess.run(child, check=True, capture_output=True).stdout))
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{GPUS} GPUs every {INTERVAL_S * 1e3:.0f} ms, {len(GPU)} metrics, {RUNS} runs of {RUN_S:.0f} s each")
    middle = {
        kind: {name: statistics.median(run[name] for run in found) for name in found[0]} for kind, found in runs.items()
    }
    for kind, median in middle.items():
        print(
            f"  {kind:9} {100 * median['share']:5.2f} % of a core (of it {100 * median['shipping']:.2f} for batches), "
            f"late p50 {1e3 * median['late_p50']:.2f} ms, p99 {1e3 * median['late_p99']:.2f} ms, "
            f"{median['bytes_a_row']:.0f} bytes a row in a batch, {median['left_out']:.0f} rounds left out"
        )
    ours, peer = middle["packed"], middle["messages"]
    print(f"  a message a row costs {peer['share'] / ours['share']:.2f} × as much")
    is_late = ours["late_p99"] >= MAX_LATE_S
    is_dear = ours["share"] >= MAX_SHARE
    late = f"{NAME}: jitter p99 {1e3 * ours['late_p99']:.2f} ms, target < {1e3 * MAX_LATE_S:.0f}"
    print(f"{late}: {'short' if is_late else 'ok'}")
    dear = f"{NAME}: {100 * ours['share']:.2f} % of a core, target < {100 * MAX_SHARE:.0f}"
    print(f"{dear}: {'short' if is_dear else 'ok'}")
    return int(is_late or is_dear)


def measure(kind: str) -> dict[str, float]:
    """One run in this process."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        home.prepare()
        hardware = Hardware(_settings(home), home)
        control_plane = ControlPlane("http://127.0.0.1:1", load_or_create_key(home.path))
        control_plane.credential = Credential("00000000-0000-4000-8000-000000000000", 1)
        outbox = Outbox(home, Boot(1, "11111111-0000-4000-8000-000000000000"))
        shipper = Shipper(home, outbox, control_plane)
        hardware.start()
        sampler = hardware.sampler
        assert sampler is not None
        if kind == "messages":
            sampler.writer = MessageWriter(home.spool)  # type: ignore[assignment]
        begin_s, cpu_s, shipping_s, size = time.monotonic(), time.process_time(), 0.0, 0
        while time.monotonic() - begin_s < RUN_S:
            for _ in range(int(SHIP_EVERY_S)):
                time.sleep(1.0)
                hardware.tick(time.monotonic(), [])
            before_s = time.thread_time()
            hardware.publish()
            if kind == "messages":
                size += ship_messages(home)
            else:
                shipper.collect()
            for name in outbox.pending():
                size += len(outbox.read(name))
                outbox.acknowledge(name)
            shipping_s += time.thread_time() - before_s
        passed_s, used_s = time.monotonic() - begin_s, time.process_time() - cpu_s
        hardware.stop()
        rows = sampler.writer.written
        late = np.array(sampler.lateness_s)
        return {
            "share": used_s / passed_s,
            "shipping": shipping_s / passed_s,
            "late_p50": float(np.percentile(late, 50)),
            "late_p99": float(np.percentile(late, 99)),
            "left_out": float(sampler.left_out),
            "bytes_a_row": size / rows,
        }


def _settings(home: Home) -> Settings:
    return Settings(
        home=home.path,
        server="http://127.0.0.1:1",
        name="node-1",
        zone="zone-a",
        gateway=Listen("127.0.0.1", 1),
        hardware=HardwareMode.SIMULATED,
        simulated_gpus=GPUS,
        sample_interval_s=INTERVAL_S,
    )


# the peer


def _row_message() -> Any:
    """A message with a field for each metric, as one would write it in a .proto file."""
    file = descriptor_pb2.FileDescriptorProto(name="row.proto", package="peer", syntax="proto3")
    kind = file.message_type.add(name="GpuRow")
    field = descriptor_pb2.FieldDescriptorProto
    kind.field.add(name="gpu", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    kind.field.add(name="time_unix_us", number=2, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    for number, metric in enumerate(GPU, start=3):
        kind.field.add(name=metric.name, number=number, type=field.TYPE_FLOAT, label=field.LABEL_OPTIONAL)
    batch = file.message_type.add(name="Batch")
    batch.field.add(
        name="rows", number=1, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED, type_name=".peer.GpuRow"
    )
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClassesForFiles([file.name], descriptor_pool.Default())


_MESSAGES = _row_message()
GpuRow, RowBatch = _MESSAGES["peer.GpuRow"], _MESSAGES["peer.Batch"]
NAMES = [metric.name for metric in GPU]


class MessageWriter(SpoolWriter):
    """The sampler's writer, with a message a row."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "row")
        self._guard = threading.Lock()

    def append_rows(self, keys: list[str], rows: list[tuple[float, ...]]) -> bool:
        """Write each row as a message of its own."""
        with self._guard:
            for row in rows:
                values = dict(zip(NAMES, row[2:], strict=True))
                self.append(GpuRow(gpu=keys[int(row[1])], time_unix_us=int(row[0]), **values))
        return self.lost == 0

    def publish(self) -> None:
        """Let the shipper have what was written so far."""
        with self._guard:
            self.close()


def ship_messages(home: Home) -> int:
    """What collecting does, for messages: read each, put it into a batch, write that durably, delete the files.

    Returns the batch's size in bytes.
    """
    files = sorted(home.spool.glob("row-*.log"))
    batch = RowBatch()
    for path in files:
        batch.rows.extend(read_messages(path, GpuRow))
    raw: bytes = batch.SerializeToString(deterministic=True)
    path = home.outbox / "batch.pb"
    write_json(path.with_suffix(".json"), {"sources": [file.name for file in files], "parts": 1})
    write_atomically(path, raw)
    for file in (*files, path, path.with_suffix(".json")):
        file.unlink()
    sync_folder(home.spool)
    return len(raw)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        sys.exit(0)
    sys.exit(main())
