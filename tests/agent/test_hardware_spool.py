"""Packed samples from the writer's file to the batch: whole, once, and within what a batch may hold."""

from __future__ import annotations

import base64
import json
import math
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.agent.client import ControlPlane, Credential
from node.agent.hardware.packed import (
    MAX_HEAD_BYTES,
    PackedWriter,
    joined,
    read_packed,
    row_count,
)
from node.agent.home import Home
from node.agent.identity import load_or_create_key, public_key_b64
from node.agent.telemetry import MAX_HOMELESS_BYTES, Boot, Outbox, Shipper
from protocol.bounds import has_more_fields_than
from protocol.messages import TELEMETRY_MAX_BYTES, TELEMETRY_MAX_ROWS, TELEMETRY_MAX_SAMPLES
from protocol.metrics import ENGINE, GPU
from protocol.spool import SpoolError, SpoolWriter, recover_orphans
from protocol.telemetry_pb2 import GpuSamples, InferenceRow
from tests.agent.plane import Plane

FIRST = Boot(1, "11111111-0000-4000-8000-000000000000")
SECOND = Boot(2, "22222222-0000-4000-8000-000000000000")
HEAD_FIELDS = 20  # what the control plane lets a batch have beside its rows
KEYS = tuple(f"GPU-{number}" for number in range(8))
f32 = st.floats(width=32, allow_nan=False)
rows_of_engines = st.lists(
    st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 255), *[f32 for _ in ENGINE]), max_size=30
)


def gpu_rows(start: int, count: int) -> list[tuple[float, ...]]:
    return [(1_000_000 + number, number % 8, *[float(number)] * len(GPU)) for number in range(start, start + count)]


def home_of(folder: Path) -> Home:
    home = Home(folder)
    home.prepare()
    return home


def shipper_of(plane: Plane, home: Home, boot: Boot = FIRST) -> Shipper:
    key = load_or_create_key(home.path)
    plane.public_key = base64.b64decode(public_key_b64(key))
    control_plane = ControlPlane(plane.url, key)
    control_plane.credential = Credential(plane.node, 1)
    return Shipper(home, Outbox(home, boot), control_plane)


def spool_files(home: Home, rows: int, files: int) -> None:
    writer = PackedWriter(home.spool, "gpu", simulated=True)
    for number in range(files):
        assert writer.append_rows(KEYS, gpu_rows(number * rows, rows))
        writer.publish()


def arrived(plane: Plane) -> list[int]:
    """The times of all samples, in the order of arrival."""
    parts = [message for batch in plane.stored() for message in batch.gpu]
    return [int(at) for part in parts for at in np.frombuffer(part.time_unix_us, "<i8")]


# one file


@given(rounds=st.lists(rows_of_engines, max_size=5))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[tuple[float, ...]]]
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    writer = PackedWriter(folder, "eng")
    for rows in rounds:
        assert writer.append_rows(("a", "b"), rows)
    writer.publish()
    wanted = [row for rows in rounds for row in rows]
    files = list(folder.iterdir())
    assert len(files) == bool(wanted)
    found = [tuple(row) for path in files for row in read_packed(path).rows]  # type: ignore[union-attr]
    assert found == wanted


@given(cut=st.integers(0, 2_000))
def test_a_torn_file_gives_its_whole_rows(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("spool")
    writer = PackedWriter(folder, "gpu")
    writer.append_rows(KEYS, gpu_rows(0, 10))
    writer.publish()
    (path,) = folder.iterdir()
    whole = read_packed(path)
    raw = path.read_bytes()
    path.write_bytes(raw[:cut])
    found = read_packed(path)
    assert whole is not None
    size = whole.rows.dtype.itemsize
    begin = len(raw) - 10 * size
    if found is None:
        assert cut < begin
    else:
        assert len(found) == min(10, (cut - begin) // size)
        np.testing.assert_array_equal(found.rows, whole.rows[: len(found)])


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff" * 40,
        b"FPS1" + struct.pack("<I", MAX_HEAD_BYTES + 1) + b"{}",
        b"FPS1" + struct.pack("<I", 2) + b"{}",
        b"FPS1" + struct.pack("<I", 2) + b"\xff\xff",
        *(
            b"FPS1" + struct.pack("<I", len(head)) + head
            for head in (
                b"[1, 2]",
                b'{"kind": "cpu", "keys": [], "columns": [], "simulated": false}',
                b'{"kind": "gpu", "keys": [], "columns": ["a", "a"], "simulated": false}',
                b'{"kind": "gpu", "keys": 5, "columns": [], "simulated": false}',
                b'{"kind": "gpu", "keys": "' + b"k" * 65 + b'", "columns": [], "simulated": false}',
            )
        ),
    ],
)
def test_what_no_writer_wrote_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "gpu-0-0-0.log"
    path.write_bytes(raw)
    with pytest.raises(SpoolError, match=r"sample|head"):
        read_packed(path)


def test_other_things_are_another_file(tmp_path: Path) -> None:
    writer = PackedWriter(tmp_path, "gpu")
    writer.append_rows(KEYS, gpu_rows(0, 1))
    writer.append_rows(KEYS[:7], gpu_rows(1, 1))
    writer.publish()
    parts = [read_packed(path) for path in sorted(tmp_path.iterdir())]
    assert [len(part.keys) for part in parts if part] == [8, 7]
    assert len(joined(part for part in parts if part)) == 2


def test_a_full_disk_costs_rows_and_no_file(tmp_path: Path) -> None:
    writer = PackedWriter(tmp_path / "gone", "gpu")
    assert not writer.append_rows(KEYS, gpu_rows(0, 8))
    assert writer.lost == 8
    (tmp_path / "gone").mkdir()
    assert writer.append_rows(KEYS, gpu_rows(8, 8))
    writer.publish()
    (path,) = (tmp_path / "gone").iterdir()
    found = read_packed(path)
    assert found is not None
    assert len(found) == 8


KILLED = """
import sys, time
from pathlib import Path
from node.agent.hardware.packed import PackedWriter
from tests.agent.test_hardware_spool import KEYS, gpu_rows
writer = PackedWriter(Path(sys.argv[1]), "gpu")
writer.append_rows(KEYS, gpu_rows(0, 40))
print("written", flush=True)
time.sleep(60)
"""


@pytest.mark.crash
def test_a_killed_sampler_loses_nothing_it_had_written(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"written\n"
    assert recover_orphans(tmp_path) == []  # it lives, and goes on writing
    child.kill()
    child.wait()
    (path,) = recover_orphans(tmp_path)
    found = read_packed(path)
    assert found is not None
    assert len(found) == 40


# into batches


def test_samples_arrive_once_with_the_rows_of_requests(plane: Plane, tmp_path: Path) -> None:
    home = home_of(tmp_path)
    spool_files(home, rows=80, files=5)
    engines = PackedWriter(home.spool, "eng")
    engines.append_rows(("d-1",), [(7, 0, 1.0, 0.0, 3.0, 0.5, math.nan)])
    engines.publish()
    requests = SpoolWriter(home.spool, "inf")
    requests.append(InferenceRow(request_id="a", compute_us=500_000, batch_size=2))
    requests.close()
    shipper = shipper_of(plane, home)
    assert not shipper.collect()
    assert shipper.ship() == 402
    assert shipper.compute_s == 0.25
    (batch,) = plane.stored()
    (samples,) = batch.gpu
    assert isinstance(samples, GpuSamples)
    assert (list(samples.gpus), samples.simulated) == (list(KEYS), True)
    assert arrived(plane) == list(range(1_000_000, 1_000_400))
    assert list(samples.gpu[:9]) == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    columns = {column.name: np.frombuffer(column.values, "<f4") for column in samples.columns}
    assert list(columns) == [metric.name for metric in GPU]
    assert all(list(values) == list(range(400)) for values in columns.values())
    (engine,) = batch.engine
    assert list(engine.deployments) == ["d-1"]
    assert [len(column.values) for column in engine.columns] == [4] * len(ENGINE)
    assert list(home.spool.iterdir()) == []
    assert list(home.outbox.iterdir()) == []


def test_many_samples_are_several_batches_within_the_limits(plane: Plane, tmp_path: Path) -> None:
    home = home_of(tmp_path)
    spool_files(home, rows=3_000, files=8)
    requests = SpoolWriter(home.spool, "inf")
    for number in range(1_500):
        requests.append(InferenceRow(request_id=f"row-{number}"))
    requests.close()
    shipper = shipper_of(plane, home)
    assert shipper.has_full_batch()
    while shipper.collect():
        continue
    shipper.ship()
    batches = plane.stored()
    for raw, batch in zip(plane.batches, batches, strict=True):
        assert sum(row_count(part) for part in (*batch.gpu, *batch.engine)) <= TELEMETRY_MAX_SAMPLES
        assert len(batch.inference) <= TELEMETRY_MAX_ROWS
        assert len(raw) <= TELEMETRY_MAX_BYTES
    assert arrived(plane) == list(range(1_000_000, 1_024_000))
    assert len(plane.inference()) == 1_500


def test_engines_that_come_and_go_make_no_batch_of_too_many_fields(plane: Plane, tmp_path: Path) -> None:
    home = home_of(tmp_path)
    writer = PackedWriter(home.spool, "eng")
    requests = SpoolWriter(home.spool, "inf")
    for number in range(990):
        requests.append(InferenceRow(request_id=f"row-{number}"))
    requests.close()
    for number in range(40):
        writer.append_rows((f"deployment-{number}",), [(number, 0, *[0.0] * len(ENGINE))])
    writer.publish()
    shipper = shipper_of(plane, home)
    while shipper.collect():
        continue
    shipper.ship()
    assert not any(has_more_fields_than(raw, TELEMETRY_MAX_ROWS + HEAD_FIELDS) for raw in plane.batches)
    assert len({part.deployments[0] for batch in plane.stored() for part in batch.engine}) == 40


def test_samples_that_are_given_up_are_counted(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    spool_files(home, rows=8, files=1)
    (path,) = home.spool.iterdir()
    part = read_packed(path)
    assert part is not None
    outbox = Outbox(home, FIRST)
    outbox.add("node", [], [path], 0.0, [part])
    (name,) = outbox.pending()
    outbox.empty(name, "nobody wants it")
    assert outbox.dropped_rows == 8
    outbox.empty(name, "nobody wants it")
    assert outbox.dropped_rows == 8


def test_a_corrupt_file_does_not_jam_the_rest(plane: Plane, tmp_path: Path) -> None:
    home = home_of(tmp_path)
    (home.spool / "gpu-0000000000001-1-1.log").write_bytes(b"\xff" * 40)
    (home.spool / "gpu-0000000000002-1-1.log").write_bytes(b"FPS1")
    spool_files(home, rows=8, files=1)
    shipper = shipper_of(plane, home)
    shipper.collect()
    shipper.ship()
    assert len(arrived(plane)) == 8
    assert shipper.dropped_rows == 1


def test_a_node_that_is_not_let_in_keeps_its_newest_samples(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    spool_files(home, rows=8, files=3)
    oldest, *others = sorted(home.spool.iterdir())
    head = oldest.read_bytes()
    oldest.write_bytes(head + b"\0" * MAX_HOMELESS_BYTES)
    shipper = Shipper(home, Outbox(home, FIRST), ControlPlane("http://127.0.0.1:1", load_or_create_key(home.path)))
    assert not shipper.collect()
    assert sorted(home.spool.iterdir()) == others
    assert shipper.dropped_rows > 8


CHILD = """
import json, sys
from tests.agent.test_hardware_spool import ship_in_child
ship_in_child(json.loads(sys.stdin.read()))
"""


def ship_in_child(order: dict[str, str]) -> None:
    """What the child process of the crash test runs."""
    boot = Boot(int(order["boot"]), f"{order['boot']:0>8}-0000-4000-8000-000000000000")
    shipper = shipper_of(Plane(node=order["node"], url=order["url"]), Home(Path(order["home"])), boot)
    while shipper.collect():
        continue
    shipper.ship()


@pytest.mark.crash
@pytest.mark.parametrize("failpoint", ["batch_written", "before_telemetry_ack"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_kill_loses_or_doubles_a_sample(plane: Plane, tmp_path: Path, failpoint: str, count: int) -> None:
    home = home_of(tmp_path)
    spool_files(home, rows=2_500, files=10)
    shipper_of(plane, home)  # makes the key known to the far side
    for number in range(count):
        order = json.dumps({"node": plane.node, "url": plane.url, "home": str(home.path), "boot": str(number + 3)})
        child = subprocess.run(
            [sys.executable, "-c", CHILD],
            input=order.encode(),
            env={**os.environ, "FARRIER_FAILPOINTS": failpoint},
            timeout=60,
            check=False,
        )
        assert child.returncode == -signal.SIGKILL
    after = shipper_of(plane, home, Boot(9, SECOND.id))
    while after.collect():
        continue
    after.ship()
    assert sorted(arrived(plane)) == list(range(1_000_000, 1_025_000))
    assert list(home.spool.iterdir()) == []
    assert list(home.outbox.iterdir()) == []
