"""Nodes that send telemetry: the fleet's fixtures, and batches to send."""

from __future__ import annotations

from tests.fleet.conftest import enrolled, farrier, world

__all__ = ["enrolled", "farrier", "world"]
