"""Kills at the worst moments, a control plane that is away for longer than anything lives, and an orderly end."""

from __future__ import annotations

import os
import signal
import socket
import struct
from pathlib import Path

import pytest

from node.agent.lifecycle import shutdown, status
from node.agent.processes import find
from tests.agent.artifacts import publish
from tests.agent.node import READY_S, Node, node_of, until
from tests.agent.plane import Plane, serving

DAY_AND_AN_HOUR_S = 25 * 3_600.0

ACCEPTS = "00010000"  # __SO_ACCEPTCON of /proc/net/unix
FAILPOINTS = (
    "after_assignment_persisted",
    "mid_fetch:2",
    "before_rename",
    "after_spawn",
    "after_routes_written",
    "before_telemetry_ack",
)


def _wait_for_kill(node: Node) -> None:
    assert node.agent is not None
    assert node.agent.wait(READY_S) == -signal.SIGKILL


@pytest.mark.crash
@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_an_agent_killed_anywhere_ends_up_where_it_should(plane: Plane, tmp_path: Path, failpoint: str) -> None:
    v1 = publish(plane, tmp_path, 1, ballast_bytes=3 << 20)
    with node_of(plane, tmp_path) as node:
        if failpoint == "before_telemetry_ack":
            # engines are sampled from their first second on: no agent that dies of that would get v1 to run
            node.start()
            node.settle(v1)
            node.versions(3)
            node.kill_agent()
        node.start(FARRIER_FAILPOINTS=failpoint)
        plane.assign(plane.director.bundle(1, [v1], node=plane.node), 1)
        _wait_for_kill(node)
        engine = node.engine_pid(1)
        node.start()
        until(lambda: node.is_running(v1.id, 100), "v1 runs")
        assert node.versions(5) == {"1": 5}
        assert engine in (None, node.engine_pid(1))
        assert _engines_of(node) == [node.engine_pid(1)]  # and no second one that nobody knows of
        ids = until(lambda: [row.request_id for row in plane.inference()], "rows arrive")
        assert len(ids) == len(set(ids))


def _engines_of(node: Node) -> list[int]:
    """Every process that listens on an engine's socket of this home, by the kernel's own account.

    The socket is asked for its peer: an ordinary user may not look into a sandboxed engine's /proc folder.
    """
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    ours = [row[7] for row in rows if len(row) > 7 and row[7].startswith(str(node.home.run / "e-"))]
    listening = [row[7] for row in rows if len(row) > 7 and row[3] == ACCEPTS and row[7] in ours]
    assert len(listening) == len(set(listening))  # a second listener under one path would hide behind the first
    found = set()
    for path in listening:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)
            found.add(struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
    return sorted(found)


@pytest.mark.crash
def test_without_a_control_plane_for_25_hours_it_serves_and_restarts(tmp_path: Path) -> None:
    plane = Plane()
    with node_of(plane, tmp_path) as node:
        with serving(plane):
            v1 = publish(plane, tmp_path, 1)
            node.start()
            node.settle(v1)
        node.kill_agent()
        node.start(clock_ahead_s=DAY_AND_AN_HOUR_S)  # the assignment has expired by now
        assert node.versions(5) == {"1": 5}
        before = node.engine_pid(1)
        assert before is not None
        os.kill(before, signal.SIGKILL)
        until(lambda: node.engine_pid(1) not in (None, before), "a killed engine comes back")
        assert node.versions(5) == {"1": 5}
        assert node.agent is not None
        node.agent.send_signal(signal.SIGTERM)
        node.agent.wait(20)
        shutdown(node.home, lambda _: None)  # as a reboot would
        node.start(clock_ahead_s=DAY_AND_AN_HOUR_S)
        until(lambda: node.engine_pid(1), "after a reboot as well")
        until(lambda: node.is_up() and node.infer().status_code == 200, "it serves")


def test_shutdown_ends_all_and_only_what_belongs_to_the_home(plane: Plane, tmp_path: Path) -> None:
    with node_of(plane, tmp_path) as node:
        v1 = publish(plane, tmp_path, 1)
        node.start()
        node.settle(v1)
        pids = node.pids()
        assert set(pids) == {"agent", "gateway", "zygote", "engine-1"}
        # as if the agent had been killed before it recorded its engine
        (node.home.path / "slots.json").write_text("[]")
        said: list[str] = []
        assert shutdown(node.home, said.append) == 4
        assert len(said) == 4
        assert node.pids() == {}
        assert node.agent is not None
        assert node.agent.wait(5) == 0
        assert {find(pid) for pid in pids.values()} == {None}
        assert shutdown(node.home, said.append) == 0  # again is harmless
        assert status(node.home)["name"] == "node-1"


def test_a_port_that_is_taken_is_said(plane: Plane, tmp_path: Path) -> None:
    with node_of(plane, tmp_path) as node, socket.create_server(("127.0.0.1", node.port)):
        node.start()
        found = until(
            lambda: (seen := plane.conditions().get("GatewayReady")) and "in use" in seen.message and seen, "it is told"
        )
        assert found.status == "false"
        assert found.reason == "gateway_ended"
