"""Nodes that send telemetry: the fleet's fixtures, batches to send, a fleet that alerts watch."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.fleet import builders
from tests.fleet.conftest import enrolled, farrier, world
from tests.observability.alert_lab import WatchedFleet

__all__ = ["enrolled", "farrier", "watched", "world"]


@pytest.fixture
def watched(world: builders.World, now: datetime, monkeypatch: pytest.MonkeyPatch) -> WatchedFleet:
    """A fleet whose samples and findings the test sets by hand."""
    fleet = WatchedFleet(world, now)
    fleet.install(monkeypatch)
    return fleet
