"""The real node against the real control plane: the web app over HTTP, PostgreSQL, nothing replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from apps.fleet import assignments, selectors, services
from apps.fleet.models import Node as NodeRow
from apps.fleet.models import NodePhase, ReportedDeployment
from apps.models.models import Artifact
from apps.observability import timeseries
from protocol.messages import Role
from tests.agent.node import Node, node_of, until
from tests.fleet.builders import MODEL, World
from tests.fleet.conftest import farrier, world

__all__ = ["farrier", "world"]
pytestmark = pytest.mark.django_db(transaction=True)  # the server's threads have connections of their own
INPUT = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [[0.5] * 16]}]}


@dataclass
class Far:
    """Where the control plane listens, and what it hands to a new node."""

    url: str
    join_token: str


def _utc() -> datetime:
    return datetime.now(UTC)


def _assign(world: World, specs: Sequence[services.DesiredSpec], rollout: UUID | None = None) -> NodeRow:
    row = NodeRow.objects.get(name="node-1")
    of_rollout: dict[str, Any] = {"rollout_id": rollout, "stage": 1, "attempt": 1} if rollout else {}
    services.set_desired(node=row, model=world.model, specs=specs, ring=False, **of_rollout)
    return row


def _is_in_sync() -> bool:
    assignments.compile_assignments(_utc())  # the worker's tick; it leaves out a node that polls just now
    row = selectors.with_state(NodeRow.objects.filter(name="node-1")).get()
    return selectors.in_sync(row)


def _ask(node: Node, count: int) -> list[httpx2.Response]:
    url = f"http://127.0.0.1:{node.port}/v2/models/{MODEL}/infer"
    with httpx2.Client(timeout=30.0, trust_env=False) as client:
        return [client.post(url, json=INPUT) for _ in range(count)]


def test_a_node_joins_serves_compares_and_is_promoted(world: World, live_server: Any, tmp_path: Path) -> None:
    world.pool.poll_interval_s = 0.5
    world.pool.save()
    token = services.create_join_token(pool=world.pool, actor=world.actor, now=_utc(), node_name="node-1")
    first, second = world.artifact(1), world.artifact(2)
    with node_of(Far(live_server.url, token), tmp_path) as node:  # type: ignore[arg-type]
        node.start("--hardware", "simulated")
        until(lambda: NodeRow.objects.filter(name="node-1", phase=NodePhase.ACTIVE).exists(), "the node is active")
        _assign(world, [services.DesiredSpec(first, Role.BASELINE, 100)])
        until(_is_in_sync, "it runs v1")
        assert {answer.headers["x-farrier-version"] for answer in _ask(node, 5)} == {"1"}

        rollout = uuid4()
        specs = [services.DesiredSpec(first, Role.BASELINE, 50), services.DesiredSpec(second, Role.CANDIDATE, 50, 100)]
        row = _assign(world, specs, rollout)
        until(_is_in_sync, "it runs both")
        answers = _ask(node, 40)
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.headers["x-farrier-version"] for answer in answers} == {"1", "2"}
        _check_rows(row, answers[-1].headers["x-request-id"], rollout, lambda: _ask(node, 5))

        _assign(world, [services.DesiredSpec(second, Role.BASELINE, 100)])
        until(_is_in_sync, "it runs v2 alone")
        assert {answer.headers["x-farrier-version"] for answer in _ask(node, 5)} == {"2"}
        _check_reports(row, second)


def _check_rows(row: NodeRow, request_id: str, rollout: UUID, ask: Callable[[], object]) -> None:
    until(lambda: timeseries.request(request_id, [row.team_id]), "the request's row is stored")

    def pairs() -> Sequence[object]:
        ask()
        return timeseries.comparison_pairs(rollout, 1, 1)

    until(pairs, "comparisons are stored")


def _check_reports(row: NodeRow, artifact: Artifact) -> None:
    report = ReportedDeployment.objects.get(node=row)
    assert (report.state, report.digest, report.weight_in_force) == ("running", artifact.digest, 100)
    assert report.warmup_ms is not None
    conditions = {condition.type: condition.status for condition in row.conditions.all()}
    wanted = {"DiskSpace", "ZygoteReady", "GatewayReady", "ComparatorReady", "ControlPlaneReachable", "GpusSampled"}
    assert {kind for kind in wanted if conditions.get(kind) == "true"} == wanted
    assert conditions["HardwareSimulated"] == "true"
    assert list(row.gpus.order_by("index").values_list("index", "simulated")) == [(index, True) for index in range(8)]
    row.refresh_from_db()
    assert row.gateway_url.startswith("http://127.0.0.1:")
