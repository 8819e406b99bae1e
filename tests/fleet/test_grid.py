"""The grid: what a cell says of a node and of each GPU, and that a large fleet is drawn by nodes."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from apps.access.models import User
from apps.fleet import grid
from apps.fleet.models import Condition, Gpu, GpuHealth, Node, NodePhase, ReportedDeployment
from tests.fleet import builders
from tests.fleet.builders import World


@pytest.fixture
def node(world: World, now: datetime) -> Node:
    """An active node, just heard from, with three well GPUs."""
    found, _ = builders.enrol(world, "node-1", now)
    builders.activate(found, now)
    for index in range(3):
        Gpu.objects.create(
            uuid=f"GPU-{index}", node=found, index=index, name="A100", memory_bytes=80, health=GpuHealth.OK
        )
    return found


def cells(user: User, now: datetime) -> list[str]:
    return [cell.health for zone in grid.grid(user, now).zones for cell in zone.cells]


def condition(node: Node, kind: str, now: datetime) -> None:
    Condition.objects.create(node=node, type=kind, status="true", since=now)


def test_each_gpu_has_its_own_health(node: Node, viewer: User, now: datetime) -> None:
    node.gpus.filter(index=1).update(health=GpuHealth.HOT)
    node.gpus.filter(index=2).update(health=GpuHealth.UNKNOWN)
    assert cells(viewer, now) == ["idle", "hot", "silent"]
    found = grid.totals(viewer, now)
    assert (found.nodes, found.gpus, found.well) == (1, 3, 0)
    assert found.zones[0].counts == {"hot": 1}


def test_a_nodes_condition_colours_all_only_while_no_gpu_is_known_to_be_it(
    node: Node, viewer: User, now: datetime
) -> None:
    condition(node, "GpuHot", now)
    assert cells(viewer, now) == ["hot", "hot", "hot"]
    node.gpus.filter(index=1).update(health=GpuHealth.HOT)
    assert cells(viewer, now) == ["idle", "hot", "idle"]


@pytest.mark.parametrize(
    ("health", "phase", "silent", "wanted"),
    [
        (GpuHealth.OK, NodePhase.ACTIVE, False, "idle"),
        (GpuHealth.OK, NodePhase.ACTIVE, True, "away"),
        (GpuHealth.HOT, NodePhase.ACTIVE, True, "away"),
        (GpuHealth.LOST, NodePhase.ACTIVE, True, "lost"),
        (GpuHealth.XID, NodePhase.CORDONED, False, "xid"),
        (GpuHealth.HOT, NodePhase.CORDONED, False, "hot"),
        (GpuHealth.THROTTLED, NodePhase.CORDONED, False, "cordoned"),
        (GpuHealth.THROTTLED, NodePhase.ACTIVE, False, "throttled"),
        (GpuHealth.UNKNOWN, NodePhase.ACTIVE, False, "silent"),
        (GpuHealth.LOST, NodePhase.BANNED, False, "banned"),
        (GpuHealth.OK, NodePhase.PENDING, True, "pending"),
    ],
)
def test_what_outweighs_what(
    health: GpuHealth, phase: NodePhase, silent: bool, wanted: str, node: Node, viewer: User, now: datetime
) -> None:
    node.gpus.update(health=health)
    seen = now - timedelta(days=1) if silent else now
    Node.objects.filter(pk=node.pk).update(phase=phase, last_seen_at=seen)
    assert cells(viewer, now) == [wanted] * 3


def test_a_node_that_serves_says_so(node: Node, viewer: User, now: datetime) -> None:
    ReportedDeployment.objects.create(
        node=node, deployment_id=node.pk, digest="a", state="running", since=now, reported_at=now
    )
    assert cells(viewer, now) == ["serving"] * 3


def test_a_host_without_gpus_is_a_cell_too(world: World, viewer: User, now: datetime) -> None:
    host, _ = builders.enrol(world, "cpu-1", now)
    builders.activate(host, now)
    condition(host, "GpuThrottled", now)
    assert cells(viewer, now) == ["throttled"]


def test_a_large_fleet_is_drawn_by_nodes(
    node: Node, viewer: User, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.gpus.filter(index=2).update(health=GpuHealth.XID)
    monkeypatch.setattr(grid, "GPUS_DRAWN", 2)
    found = grid.grid(viewer, now)
    assert found.by_gpu is False
    assert found.zones[0].cells == (grid.Cell("node-1", None, "xid", False),)
    assert [entry[2:] for entry in found.legend] == [("Xid error", 1)]


def test_the_start_page_of_a_large_fleet_counts_by_zone(
    world: World, node: Node, viewer: User, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders.enrol(world, "node-2", now)
    monkeypatch.setattr(grid, "NODES_AT_HOME", 1)
    found = grid.at_home(viewer, now)
    assert all(zone.cells == () for zone in found.zones)
    assert sum(zone.nodes for zone in found.zones) == 2


def test_other_teams_nodes_are_not_counted(node: Node, outsider: User, now: datetime) -> None:
    assert grid.grid(outsider, now).zones == ()


def test_a_failed_deployment_counts_only_while_it_is_wanted(node: Node, viewer: User, now: datetime) -> None:
    ReportedDeployment.objects.create(
        node=node, deployment_id=node.pk, digest="a", state="failed", since=now, reported_at=now
    )
    assert cells(viewer, now) == ["idle"] * 3
