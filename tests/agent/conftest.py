"""Fixtures of the node agent's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.plane import Plane, serving


@pytest.fixture
def plane() -> Iterator[Plane]:
    """A far side on loopback."""
    with serving(Plane()) as far_side:
        yield far_side
