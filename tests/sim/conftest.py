"""The simulated fleet stands on the fleet's fixtures."""

from __future__ import annotations

from tests.fleet.conftest import farrier, world

__all__ = ["farrier", "world"]
