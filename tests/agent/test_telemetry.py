"""From spool to control plane: in order, once, and as the same bytes after every crash."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from node.agent.client import ControlPlane, Credential
from node.agent.errors import Permanent, Temporary
from node.agent.home import Home
from node.agent.identity import load_or_create_key, public_key_b64
from node.agent.telemetry import MAX_AGE_S, Boot, Outbox, Shipper
from protocol.messages import TELEMETRY_MAX_ROWS
from protocol.spool import SpoolWriter
from protocol.telemetry_pb2 import ComparisonRow, InferenceRow
from tests.agent.plane import Plane

FIRST = Boot(1, "11111111-0000-4000-8000-000000000000")
SECOND = Boot(2, "00000000-0000-4000-8000-000000000000")  # sorts before the first by its id alone


def _home(folder: Path) -> Home:
    home = Home(folder)
    home.prepare()
    return home


def _shipper(plane: Plane, home: Home, boot: Boot = FIRST) -> Shipper:
    key = load_or_create_key(home.path)
    plane.public_key = base64.b64decode(public_key_b64(key))
    control_plane = ControlPlane(plane.url, key)
    control_plane.credential = Credential(plane.node, 1)
    return Shipper(home, Outbox(home, boot), control_plane)


def _spool(home: Home, *ids: str, prefix: str = "inf") -> None:
    writer = SpoolWriter(home.spool, prefix)
    for identity in ids:
        row = InferenceRow(request_id=identity) if prefix == "inf" else ComparisonRow(request_id=identity)
        assert writer.append(row)
    writer.close()


def _ids(plane: Plane) -> list[str]:
    return [row.request_id for row in plane.inference()]


def test_rows_arrive_once_and_leave_nothing_behind(plane: Plane, tmp_path: Path) -> None:
    home = _home(tmp_path)
    _spool(home, "a", "b")
    _spool(home, "c", prefix="cmp")
    shipper = _shipper(plane, home)
    assert not shipper.collect()
    assert shipper.ship() == 3
    assert _ids(plane) == ["a", "b"]
    assert [row.request_id for row in plane.comparisons()] == ["c"]
    assert plane.stored()[0].node == plane.node
    assert list(home.spool.iterdir()) == []
    assert list(home.outbox.iterdir()) == []
    assert not shipper.collect()
    assert shipper.ship() == 0


def test_large_files_are_cut_into_batches_that_are_taken(plane: Plane, tmp_path: Path) -> None:
    home = _home(tmp_path)
    ids = [f"row-{number}" for number in range(2 * TELEMETRY_MAX_ROWS + 5)]
    _spool(home, *ids)
    shipper = _shipper(plane, home)
    shipper.collect()
    shipper.ship()
    assert [batch.seq for batch in plane.stored()] == [1, 2, 3]
    assert _ids(plane) == ids


def test_a_lost_acknowledgement_is_a_resend_of_the_same_bytes(plane: Plane, tmp_path: Path) -> None:
    home = _home(tmp_path)
    _spool(home, "a")
    plane.lose_acknowledgements = True
    shipper = _shipper(plane, home)
    shipper.collect()
    with pytest.raises(Temporary):
        shipper.ship()
    plane.lose_acknowledgements = False
    _spool(home, "b")
    after = _shipper(plane, home, SECOND)  # the agent was restarted meanwhile
    after.collect()
    after.ship()
    assert plane.batches[0] == plane.batches[1]
    assert [(batch.boot_id, batch.seq) for batch in plane.stored()] == [(FIRST.id, 1), (SECOND.id, 1)]
    assert _ids(plane) == ["a", "b"]


def test_a_refused_batch_gives_up_its_rows_but_not_its_place(plane: Plane, tmp_path: Path) -> None:
    home = _home(tmp_path)
    shipper = _shipper(plane, home)
    for identity in ("bad", "good"):
        _spool(home, identity)
        shipper.collect()
    plane.refuse_rows_of = "bad"
    shipper.ship()
    assert _ids(plane) == ["good"]
    assert [batch.seq for batch in plane.stored()] == [1, 2]
    assert shipper.dropped_rows == 1


def test_a_banned_node_keeps_its_rows(plane: Plane, tmp_path: Path) -> None:
    home = _home(tmp_path)
    _spool(home, "a")
    shipper = _shipper(plane, home)
    shipper.collect()
    plane.refuse = (403, {"code": "node_banned"})
    with pytest.raises(Permanent):
        shipper.ship()
    assert shipper.dropped_rows == 0
    plane.refuse = None
    assert shipper.ship() == 1


def test_beyond_a_day_or_a_size_the_oldest_rows_are_given_up_aloud(tmp_path: Path) -> None:
    home = _home(tmp_path)
    outbox = Outbox(home, FIRST)
    for identity in ("old", "middle", "new"):
        outbox.add("node", [InferenceRow(request_id=identity)], [], 0.0)
    old, middle, new = outbox.pending()
    now = (home.outbox / str(new)).stat().st_mtime
    os.utime(home.outbox / str(old), (now - MAX_AGE_S - 1, now - MAX_AGE_S - 1))
    outbox.limit(now)
    assert outbox.dropped_rows == 1
    assert outbox.pending() == [old, middle, new]  # the sequence has no hole
    outbox.limit(now, max_bytes=len(outbox.read(new)) + 1)
    assert outbox.dropped_rows == 2
    assert b"new" in outbox.read(new)
    assert b"middle" not in outbox.read(middle)


def test_a_spool_file_that_is_no_spool_file_does_not_jam_the_rest(plane: Plane, tmp_path: Path) -> None:
    home = _home(tmp_path)
    (home.spool / "inf-0000000000001-1-1.log").write_bytes(b"\xff" * 40)
    _spool(home, "a")
    shipper = _shipper(plane, home)
    shipper.collect()
    shipper.ship()
    assert _ids(plane) == ["a"]
    assert shipper.dropped_rows == 1


CHILD = """
import json, sys
from tests.agent.test_telemetry import ship_in_child
ship_in_child(json.loads(sys.stdin.read()))
"""


def ship_in_child(order: dict[str, str]) -> None:
    """What the child process of the crash test runs."""
    plane = Plane(node=order["node"], url=order["url"])
    shipper = _shipper(plane, Home(Path(order["home"])))
    while shipper.collect():
        continue
    shipper.ship()


@pytest.mark.crash
@pytest.mark.parametrize("failpoint", ["batch_written", "before_telemetry_ack"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_kill_loses_or_doubles_a_row(plane: Plane, tmp_path: Path, failpoint: str, count: int) -> None:
    home = _home(tmp_path)
    ids = [f"row-{number}" for number in range(2 * TELEMETRY_MAX_ROWS + 5)]
    _spool(home, *ids)
    _shipper(plane, home)  # makes the key known to the far side
    order = json.dumps({"node": plane.node, "url": plane.url, "home": str(home.path)})
    environment = {**os.environ, "FARRIER_FAILPOINTS": failpoint}
    child = subprocess.run(
        [sys.executable, "-c", CHILD], input=order.encode(), env=environment, timeout=60, check=False
    )
    assert child.returncode == -signal.SIGKILL
    after = _shipper(plane, home, SECOND)
    while after.collect():
        continue
    after.ship()
    assert _ids(plane) == ids
    assert list(home.spool.iterdir()) == []
    assert list(home.outbox.iterdir()) == []
