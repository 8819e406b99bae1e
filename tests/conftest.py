"""What every test may ask for: a team, a user of each role, clients that speak as them, a home of its own.

A database is given by DATABASE_URL; `make test` starts one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from rest_framework.test import APIClient

from aifb.trust import Root
from apps.access import services as access
from apps.access.actors import SYSTEM, Actor
from apps.access.models import Role, Scope, Team, User
from apps.models import services as registry
from apps.models.models import ModelVersion
from apps.observability import store
from tests.artifacts import Keys, pack, signed_manifest

PASSWORD = "correct horse battery staple"


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FARRIER_HOME of this test alone."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "static").mkdir()
    settings.STATIC_ROOT = folder / "static"
    settings.FARRIER = settings.FARRIER.model_copy(update={"home": folder})
    return folder


@pytest.fixture(autouse=True)
def _quick_passwords(settings: Any) -> None:
    # the real hasher takes 0.3 s a user, by design
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def _empty_series(request: pytest.FixtureRequest, django_db_blocker: Any) -> Iterator[None]:
    """Empty the series tables after a test that commits: Django's flush knows only its own models."""
    yield
    marker = request.node.get_closest_marker("django_db")
    commits = marker is not None and marker.kwargs.get("transaction", False)
    if commits or {"transactional_db", "live_server"} & set(request.fixturenames):
        with django_db_blocker.unblock():
            empty_series()


def empty_series() -> None:
    """Empty the series tables, rollups included: nobody else does, and other tests of the worker would find them."""
    with connection.cursor() as cursor:
        for series in store.SERIES:
            cursor.execute(f"TRUNCATE {series}")


@pytest.fixture
def now() -> datetime:
    """The time of a test that needs but one."""
    return datetime.now(UTC)


@pytest.fixture
def team(db: None, now: datetime) -> Team:
    return access.create_team(slug="default", name="Default", actor=SYSTEM, now=now)


@pytest.fixture
def other_team(db: None, now: datetime) -> Team:
    return access.create_team(slug="other", name="Other", actor=SYSTEM, now=now)


@pytest.fixture
def make_user(db: None, now: datetime) -> Callable[..., User]:
    """`make_user("name", team, Role.OPERATOR)`; the password is tests.conftest.PASSWORD."""

    def make(username: str, team: Team | None = None, role: Role = Role.VIEWER, *, superuser: bool = False) -> User:
        user = access.create_user(username=username, password=PASSWORD, superuser=superuser, actor=SYSTEM, now=now)
        if team is not None:
            access.set_membership(user=user, team=team, role=role, actor=SYSTEM, now=now)
        return user

    return make


@pytest.fixture
def viewer(make_user: Callable[..., User], team: Team) -> User:
    return make_user("viewer", team, Role.VIEWER)


@pytest.fixture
def operator(make_user: Callable[..., User], team: Team) -> User:
    return make_user("operator", team, Role.OPERATOR)


@pytest.fixture
def approver(make_user: Callable[..., User], team: Team) -> User:
    return make_user("approver", team, Role.APPROVER)


@pytest.fixture
def team_admin(make_user: Callable[..., User], team: Team) -> User:
    return make_user("boss", team, Role.ADMIN)


@pytest.fixture
def superuser(make_user: Callable[..., User]) -> User:
    """A superuser without a membership."""
    return make_user("root", superuser=True)


@pytest.fixture
def outsider(make_user: Callable[..., User], other_team: Team) -> User:
    """Admin of another team: must see and change nothing of ours."""
    return make_user("outsider", other_team, Role.ADMIN)


@pytest.fixture
def api(now: datetime) -> Callable[..., APIClient]:
    """`api(user, team, Scope.READ, …)`: a REST client with a fresh token; without scopes it has every one."""

    def client(user: User, team: Team, *scopes: Scope) -> APIClient:
        _, secret = access.create_api_token(
            user=user, team=team, name="test", scopes=scopes or list(Scope), actor=SYSTEM, now=now
        )
        speaker = APIClient(raise_request_exception=True)
        speaker.credentials(HTTP_AUTHORIZATION=f"Token {secret}")
        return speaker

    return client


@pytest.fixture(scope="session")
def keys() -> Keys:
    """Root, release and director keys; made once, since a key takes a second."""
    return Keys.generate()


@pytest.fixture
def trust_root(db: None, keys: Keys, now: datetime) -> Root:
    """The installation's trust root, version 1."""
    return registry.add_root(envelope=keys.envelope, actor=SYSTEM, now=now)


@pytest.fixture
def publish(
    trust_root: Root, keys: Keys, team: Team, operator: User, now: datetime, tmp_path: Path
) -> Callable[..., ModelVersion]:
    """`publish("digits", seed=1)`: reserve, upload, sign and publish the next version, by the operator."""

    def make(slug: str = "digits", *, seed: int = 0, **pack_options: Any) -> ModelVersion:
        actor = Actor.person(operator)
        packed = pack(tmp_path / f"{slug}-{seed}.aifb", seed=seed, **pack_options)
        version = registry.reserve_version(slug=slug, team=team, actor=actor, now=now)
        with packed.written.path.open("rb") as file:
            registry.store_blob(
                read=file.read,
                digest=packed.written.digest,
                length=packed.written.total_bytes,
                team=team,
                actor=actor,
                now=now,
            )
        registry.publish_version(
            version=version,
            envelope=signed_manifest(packed, slug, version.number, keys.release),
            publication=registry.Publication(lineage_inputs=packed.inputs.as_dict(), precision="float32"),
            actor=actor,
            now=now,
        )
        return version

    return make
