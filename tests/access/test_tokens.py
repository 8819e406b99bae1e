"""API tokens over HTTP: made once, scoped, confined to a team, ended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
import time_machine
from rest_framework.test import APIClient

from apps.access import services
from apps.access.actors import SYSTEM
from apps.access.models import ApiToken, Role, Scope, Team, User
from apps.audit.models import Event

pytestmark = pytest.mark.django_db
Api = Callable[..., APIClient]


def session(user: User) -> APIClient:
    client = APIClient()
    client.force_login(user)
    return client


def test_a_person_makes_a_token_and_sees_its_secret_once(operator: User, team: Team) -> None:
    client = session(operator)
    wanted = {"name": "ci", "team": "default", "scopes": ["read", "registry:write"]}
    made = client.post("/api/v1/tokens", wanted, format="json")
    assert made.status_code == 201
    secret = made.json()["secret"]
    assert secret.startswith("farrier_")
    assert secret not in str(client.get("/api/v1/tokens").json())
    assert not ApiToken.objects.filter(digest=secret).exists()
    me = APIClient().get("/api/v1/me", HTTP_AUTHORIZATION=f"Token {secret}").json()
    assert (me["username"], me["token"], me["scopes"]) == ("operator", "ci", ["read", "registry:write"])
    event = Event.objects.get(verb="token.created")
    assert (event.actor, event.actor_label) == (operator, "operator")
    assert secret not in str(event.data)


def test_a_token_can_not_beget_another(api: Api, operator: User, team: Team) -> None:
    answer = api(operator, team).post("/api/v1/tokens", {"name": "x", "team": "default", "scopes": ["read"]})
    assert answer.status_code == 403
    assert answer.json()["code"] == "scope_missing"
    assert ApiToken.objects.count() == 1


@pytest.mark.parametrize(
    "header",
    ["Token", "Token a b", "Token nope", f"Token {'0' * 64}", "Token \x00" + "f" * 64, f"Token {'é' * 40}"],
)
def test_a_malformed_or_unknown_token_gets_401(header: str) -> None:
    answer = APIClient().get("/api/v1/me", HTTP_AUTHORIZATION=header)
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Token"
    assert answer["Content-Type"] == "application/problem+json"


def test_without_credentials_the_answer_is_401() -> None:
    assert APIClient().get("/api/v1/me").json()["code"] == "not_authenticated"


def test_a_revoked_token_is_refused_at_the_next_request(api: Api, operator: User, team: Team) -> None:
    client = api(operator, team)
    assert client.get("/api/v1/me").status_code == 200
    token = ApiToken.objects.get()
    assert session(operator).delete(f"/api/v1/tokens/{token.token_key}").status_code == 204
    refused = client.get("/api/v1/me")
    assert (refused.status_code, refused.json()["code"]) == (401, "token_unknown")


def test_an_expired_token_is_refused_and_stays_listed(operator: User, team: Team, now: datetime) -> None:
    _, secret = services.create_api_token(
        user=operator, team=team, name="short", scopes=[Scope.READ], life=timedelta(days=1), actor=SYSTEM, now=now
    )
    with time_machine.travel(now + timedelta(days=2), tick=False):
        refused = APIClient().get("/api/v1/me", HTTP_AUTHORIZATION=f"Token {secret}")
    assert (refused.status_code, refused.json()["code"]) == (401, "token_expired")
    assert [row["name"] for row in session(operator).get("/api/v1/tokens").json()["results"]] == ["short"]


def test_nobody_sees_or_revokes_the_tokens_of_another(
    api: Api, operator: User, approver: User, superuser: User, team: Team
) -> None:
    api(operator, team)
    token = ApiToken.objects.get()
    for other in (approver, superuser):
        client = session(other)
        assert client.get("/api/v1/tokens").json()["count"] == 0
        assert client.delete(f"/api/v1/tokens/{token.token_key}").status_code == 404
    assert ApiToken.objects.count() == 1


def test_a_token_reaches_into_its_team_only(api: Api, operator: User, team: Team, other_team: Team) -> None:
    services.set_membership(user=operator, team=other_team, role=Role.ADMIN, actor=SYSTEM, now=team.created_at)
    by_token = api(operator, team).get("/api/v1/me").json()["memberships"]
    assert by_token == [{"team": "default", "role": "operator"}]
    assert len(session(operator).get("/api/v1/me").json()["memberships"]) == 2


def test_a_token_for_a_foreign_team_is_refused(operator: User, other_team: Team) -> None:
    answer = session(operator).post("/api/v1/tokens", {"name": "x", "team": "other", "scopes": ["read"]}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (404, "team_not_found")


def test_use_is_noted_at_most_once_a_minute(api: Api, operator: User, team: Team, now: datetime) -> None:
    client = api(operator, team)
    seen = []
    for seconds in (0, 59, 61):
        with time_machine.travel(now + timedelta(seconds=seconds), tick=False):
            client.get("/api/v1/me")
        seen.append(ApiToken.objects.get().last_used_at)
    assert seen == [now, now, now + timedelta(seconds=61)]


def test_tokens_end_with_the_membership(api: Api, operator: User, team: Team, now: datetime) -> None:
    client = api(operator, team)
    services.remove_membership(user=operator, team=team, actor=SYSTEM, now=now)
    assert client.get("/api/v1/me").status_code == 401


def test_session_writes_need_the_csrf_token(operator: User, team: Team) -> None:
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(operator)
    answer = client.post("/api/v1/tokens", {"name": "x", "team": "default", "scopes": ["read"]}, format="json")
    assert answer.status_code == 403
    assert not ApiToken.objects.exists()
