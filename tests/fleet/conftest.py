"""The fleet's fixtures; builders.py has what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from aifb.trust import Root
from apps.access.actors import SYSTEM
from apps.access.models import Team, User
from apps.fleet import services
from apps.models.models import ModelVersion
from tests.artifacts import Keys
from tests.fleet import builders
from tests.fleet.agents import Agent


@pytest.fixture
def farrier(settings: Any, home: Path, keys: Keys) -> Any:
    """The settings with the director's key, as a worker has them."""
    key = builders.write_key(home / "director.pem", keys.director)
    settings.FARRIER = settings.FARRIER.model_copy(update={"director_key": key})
    return settings.FARRIER


@pytest.fixture
def world(
    farrier: Any,
    trust_root: Root,
    team: Team,
    operator: User,
    team_admin: User,
    publish: Callable[..., ModelVersion],
    now: datetime,
) -> builders.World:
    pool = services.create_pool(team=team, slug="default", actor=SYSTEM, auto_accept=True, now=now)
    return builders.World(team, operator, team_admin, pool, publish)


@pytest.fixture
def enrolled(world: builders.World, now: datetime) -> Callable[[str], Agent]:
    """Enrol hosts by name."""

    def enrol(name: str) -> Agent:
        node, host = builders.enrol(world, name, now)
        return Agent(host, node.pk)

    return enrol
