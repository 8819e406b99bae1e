"""Fixtures of rollouts: a lab with three nodes that serve v1, and the people around it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from apps.access.actors import Actor
from apps.access.models import User
from apps.rollouts import services
from apps.rollouts.models import Rollout, Strategy
from tests.fleet import builders
from tests.fleet.conftest import farrier, world
from tests.rollouts.lab import Lab, SimNode

__all__ = ["farrier", "world"]


@pytest.fixture
def empty_lab(world: builders.World, now: datetime) -> Lab:
    """Three nodes in three zones that serve nothing yet."""
    services.ensure_default_strategies(world.team)
    world.pool.poll_interval_s = 10.0
    world.pool.requires_approval = False  # most rollouts here end without a person; the rule has a test of its own
    world.pool.save()
    nodes = []
    for number in (1, 2, 3):
        node, _ = builders.enrol(world, f"node-{number}", now)
        node.zone = f"zone-{'abc'[number - 1]}"
        node.save(update_fields=["zone"])
        nodes.append(SimNode(node.pk, node.name))
    return Lab(world, now, nodes)


@pytest.fixture
def requester(operator: User) -> Actor:
    return Actor.person(operator)


@pytest.fixture
def lead(approver: User) -> Actor:
    return Actor.person(approver)


@pytest.fixture
def start(empty_lab: Lab, requester: Actor) -> Callable[..., Rollout]:
    """`start(version, "demo")` or `start(version, stages=[…])`, by the requester."""

    def begin(version: Any, strategy: str | None = "demo", **changes: Any) -> Rollout:
        named = None if "stages" in changes else Strategy.objects.get(team=empty_lab.world.team, slug=strategy)
        fields: dict[str, Any] = {
            "model": version.model,
            "version": version,
            "pool": empty_lab.world.pool,
            "strategy": named,
            "actor": requester,
            "reason": "a better version",
            "now": empty_lab.now,
        }
        return services.start_rollout(**(fields | changes))

    return begin


@pytest.fixture
def lab(empty_lab: Lab, start: Callable[..., Rollout]) -> Lab:
    """Three nodes that serve v1, as a first rollout brought it to them."""
    first = start(empty_lab.version(1), "first")
    empty_lab.until(first, "completed", within_s=60)
    return empty_lab
