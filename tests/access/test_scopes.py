"""Every REST endpoint, whoever adds one: closed to strangers, to tokens without the scope, to other teams."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.test import APIClient
from rest_framework.views import APIView

from apps.access import services
from apps.access.actors import SYSTEM
from apps.access.models import Role, Scope, Team, User
from apps.lib.errors import Forbidden
from apps.models.models import ModelVersion

Api = Callable[..., APIClient]
READS = ("get",)
WRITES = ("post", "put", "patch", "delete")
SAMPLES = {"slug": "nothing", "int": 1, "str": "nothing", "uuid": uuid.UUID(int=7), "path": "nothing"}


class Endpoint(NamedTuple):
    method: str
    path: str
    view: type[APIView]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def endpoints() -> list[Endpoint]:
    """Walk the address table below /api/v1/."""

    def walk(patterns: list[Any], prefix: str) -> Iterator[Endpoint]:
        for pattern in patterns:
            route = prefix + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                yield from walk(pattern.url_patterns, route)
            elif isinstance(pattern, URLPattern) and route.startswith("api/v1/"):
                view = getattr(pattern.callback, "view_class", None) or pattern.callback.cls  # type: ignore[union-attr]
                methods = getattr(pattern.callback, "actions", None) or [m for m in WRITES + READS if hasattr(view, m)]
                for name, converter in pattern.pattern.converters.items():
                    kind = type(converter).__name__.removesuffix("Converter").lower().replace("string", "str")
                    sample = str(SAMPLES[kind])
                    route = route.replace(f"<{kind}:{name}>", sample).replace(f"<{name}>", sample)
                yield from (Endpoint(method, f"/{route}", view) for method in methods if method in WRITES + READS)

    return list(walk(get_resolver().url_patterns, ""))


ALL = endpoints()
each = pytest.mark.parametrize("endpoint", ALL, ids=str)


def send(client: APIClient, endpoint: Endpoint) -> Any:
    return client.generic(endpoint.method.upper(), endpoint.path, "{}", content_type="application/json")


def test_the_walk_finds_them() -> None:
    paths = {endpoint.path for endpoint in ALL}
    assert {"/api/v1/me", "/api/v1/models", "/api/v1/models/nothing/versions:reserve", "/api/v1/audit"} <= paths


@each
@pytest.mark.django_db
def test_a_stranger_gets_401(endpoint: Endpoint) -> None:
    answer = send(APIClient(), endpoint)
    assert answer.status_code == 401
    assert answer.json()["code"] == "not_authenticated"


@each
@pytest.mark.django_db
def test_a_token_without_the_scope_gets_403(endpoint: Endpoint, api: Api, team_admin: User, team: Team) -> None:
    needed = Scope.READ if endpoint.method in READS else endpoint.view.write_scope  # type: ignore[attr-defined]
    others = [scope for scope in Scope if scope != needed]
    answer = send(api(team_admin, team, *others), endpoint)
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing")


@each
@pytest.mark.django_db
def test_with_the_scope_it_is_open(endpoint: Endpoint, api: Api, team_admin: User, team: Team) -> None:
    needed = Scope.READ if endpoint.method in READS else endpoint.view.write_scope  # type: ignore[attr-defined]
    if needed is None:
        client = APIClient()
        client.force_login(team_admin)
    else:
        client = api(team_admin, team, needed)
    assert send(client, endpoint).status_code not in (401, 403, 405, 500)


@pytest.mark.django_db
def test_another_team_sees_and_changes_nothing(
    publish: Callable[..., ModelVersion], api: Api, outsider: User, other_team: Team, operator: User, team: Team
) -> None:
    digest = publish().artifacts.get().digest
    alias = {"version": 1, "reason": "ours"}
    assert api(operator, team).put("/api/v1/models/digits/aliases/stable", alias, format="json").status_code == 200
    client = api(outsider, other_team)
    assert client.get("/api/v1/models").json()["results"] == []
    verbs = {row["verb"] for row in client.get("/api/v1/audit").json()["results"]}
    assert verbs <= {"team.created", "team.member_set", "token.created"}
    for path in (
        "models/digits", "models/digits/versions", "models/digits/versions/1", "models/digits/aliases",
        "models/digits/aliases/stable", "models/digits/aliases/stable/history", "models/digits/aliases/stable/at",
        "models/digits/lineage-diff?before=1&after=1", f"artifacts/{digest}",
    ):  # fmt: skip
        assert client.get(f"/api/v1/{path}").status_code == 404, path
    taken = client.post("/api/v1/models/digits/versions:reserve", {}, format="json")
    assert (taken.status_code, taken.json()["code"]) == (409, "model_taken")
    assert client.patch("/api/v1/models/digits", {"task": "x"}, format="json").status_code == 404
    assert client.put("/api/v1/models/digits/aliases/stable", alias, format="json").status_code == 404
    publication = client.post("/api/v1/models/digits/versions/1:publish", {}, format="json")
    assert publication.status_code in (400, 404)
    upload = client.generic("PUT", f"/api/v1/artifacts/{digest}", b"x", content_type="application/octet-stream")
    assert (upload.status_code, upload.json()["code"]) == (409, "artifact_taken")


@pytest.mark.django_db
@pytest.mark.parametrize("held", Role)
@pytest.mark.parametrize("wanted", Role)
def test_roles_include_the_ones_before(
    make_user: Callable[..., User], team: Team, held: Role, wanted: Role, now: datetime
) -> None:
    user = make_user("somebody", team, held)
    if held.rank >= wanted.rank:
        services.require_role(user, team, wanted)
    else:
        with pytest.raises(Forbidden, match=f"somebody is {held.label.lower()} of this team"):
            services.require_role(user, team, wanted)


@pytest.mark.django_db
def test_a_superuser_is_admin_everywhere_but_a_token_of_theirs_in_its_team_only(
    superuser: User, team: Team, other_team: Team
) -> None:
    services.require_role(superuser, other_team, Role.ADMIN)
    superuser.confined_to = team.pk
    services.require_role(superuser, team, Role.ADMIN)
    with pytest.raises(Forbidden):
        services.require_role(superuser, other_team, Role.VIEWER)


@pytest.mark.django_db
def test_an_inactive_user_is_nobody(operator: User, team: Team) -> None:
    operator.is_active = False
    with pytest.raises(Forbidden):
        services.require_role(operator, team, Role.VIEWER)


@pytest.mark.django_db
def test_viewers_read_and_operators_write(api: Api, viewer: User, operator: User, team: Team) -> None:
    refused = api(viewer, team).post("/api/v1/models/digits/versions:reserve", {}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (403, "role_missing")
    assert api(operator, team).post("/api/v1/models/digits/versions:reserve", {}, format="json").status_code == 201


@pytest.mark.django_db
def test_whoever_is_in_several_teams_names_one(operator: User, team: Team, other_team: Team, now: datetime) -> None:
    services.set_membership(user=operator, team=other_team, role=Role.OPERATOR, actor=SYSTEM, now=now)
    client = APIClient()
    client.force_login(operator)
    unclear = client.post("/api/v1/models/digits/versions:reserve", {}, format="json")
    assert (unclear.status_code, unclear.json()["code"]) == (400, "team_needed")
    named = client.post("/api/v1/models/digits/versions:reserve?team=other", {}, format="json")
    assert named.status_code == 201
    assert ModelVersion.objects.get().team == other_team
