"""The log over HTTP, and the rights of the role that writes it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from rest_framework.test import APIClient

from apps.access import services as access
from apps.access.actors import SYSTEM, Actor
from apps.access.models import Role, Team, User
from apps.audit.models import Event
from apps.audit.transitions import record

pytestmark = pytest.mark.django_db
Api = Callable[..., APIClient]


@pytest.fixture
def client(api: Api, viewer: User, team: Team) -> APIClient:
    return api(viewer, team)


def verbs(client: APIClient, **filters: str) -> list[str]:
    answer = client.get("/api/v1/audit", filters)
    assert answer.status_code == 200, answer.json()
    return [row["verb"] for row in answer.json()["results"]]


def test_newest_first_and_narrowed(client: APIClient, team: Team, operator: User, now: datetime) -> None:
    for number, actor in enumerate((SYSTEM, Actor.person(operator), Actor.token(operator, "ci"))):
        record(team, f"test.{number}", actor=actor, now=now + timedelta(hours=number), reason="why")
    assert verbs(client)[:3] == ["test.2", "test.1", "test.0"]
    assert verbs(client, verb="test.1") == ["test.1"]
    assert verbs(client, verb="test.") == ["test.2", "test.1", "test.0"]
    assert verbs(client, actor="operator") == ["test.2", "test.1"]
    assert verbs(client, object_type="access.team", object_id=str(team.pk), verb="test.0") == ["test.0"]
    since, until = (now + timedelta(hours=1)).isoformat(), (now + timedelta(hours=2)).isoformat()
    assert verbs(client, since=since, until=until, verb="test.") == ["test.1"]
    row = client.get("/api/v1/audit").json()["results"][0]
    assert (row["actor"], row["actor_kind"], row["reason"], row["link"]) == (
        "operator by token ci",
        "token",
        "why",
        None,
    )


def test_events_of_no_team_are_for_superusers(client: APIClient, superuser: User, team: Team, now: datetime) -> None:
    assert "user.created" not in verbs(client)
    everything = APIClient()
    everything.force_login(superuser)
    assert "user.created" in verbs(everything)


def test_a_nul_character_is_the_caller_s_mistake(client: APIClient) -> None:
    answer = client.get("/api/v1/audit", {"verb": "a\x00b"})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_value")


def test_acts_on_people_are_recorded(team: Team, operator: User, team_admin: User, now: datetime) -> None:
    actor = Actor.person(team_admin)
    access.set_membership(user=operator, team=team, role=Role.APPROVER, actor=actor, now=now)
    access.set_membership(user=operator, team=team, role=Role.APPROVER, actor=actor, now=now)
    access.remove_membership(user=operator, team=team, actor=actor, now=now, reason="left")
    told = Event.objects.filter(actor=team_admin).order_by("id").values_list("verb", "data", "reason")
    assert list(told) == [
        ("team.member_set", {"user": "operator", "role": "approver", "before": "operator"}, ""),
        ("team.member_removed", {"user": "operator"}, "left"),
    ]
