"""The fleet's fixtures; builders.py has what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.fleet import builders
from tests.fleet.agents import Agent


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def farrier(settings: Any, tmp_path: Path) -> Any:
    """The settings with a home and a director key of this test's own."""
    settings.FARRIER = settings.FARRIER.model_copy(
        update={"home": tmp_path, "director_key": builders.write_director_key(tmp_path)}
    )
    return settings.FARRIER


@pytest.fixture
def root(db: None, farrier: Any) -> Any:
    """The published trust root."""
    return builders.publish_root()


@pytest.fixture
def world(root: Any) -> builders.World:
    return builders.make_world()


@pytest.fixture
def enrolled(world: builders.World, now: datetime) -> Callable[[str], Agent]:
    """Enrol hosts by name."""

    def enrol(name: str) -> Agent:
        node, host = builders.enrol(world, name, now)
        return Agent(host, node.pk)

    return enrol
