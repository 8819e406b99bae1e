"""A whole node, with nothing replaced but the far side: real agent, fork server, engines, Envoy, comparator."""

from __future__ import annotations

from pathlib import Path

from tests.agent.artifacts import publish
from tests.agent.node import node_of, until
from tests.agent.plane import Plane


def test_a_first_version_is_served(plane: Plane, tmp_path: Path) -> None:
    v1 = publish(plane, tmp_path, 1)
    with node_of(plane, tmp_path) as node:
        node.start()
        plane.assign(plane.director.bundle(1, [v1], node=plane.node), 1)
        until(lambda: node.is_running(v1.id, 100), "v1 runs")
        answer = node.infer()
        print(answer.headers, answer.text, node.pids())
        assert answer.headers["x-farrier-digest"] == v1.digest
