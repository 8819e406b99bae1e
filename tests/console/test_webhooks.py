"""Pages and REST of webhooks: made by admins, the secret once, a log of what became of every message."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from apps.access.models import Team, User
from apps.audit.models import Outbox, Webhook

SignIn = Callable[[User], Client]
pytestmark = pytest.mark.django_db


@pytest.fixture
def hook(team: Team, now: datetime) -> Webhook:
    """A webhook with one message of every state."""
    made = Webhook.objects.create(team=team, url="https://hooks.example/secret-path", secret="whsec_eA==")
    states: list[dict[str, Any]] = [
        {"topic": "alert.firing", "done_at": now, "attempts": 1},
        {"topic": "alert.resolved", "attempts": 3, "last_error": "hooks.example answered 500."},
        {"topic": "rollout.started", "attempts": 12, "parked_at": now, "last_error": "hooks.example answered 410."},
        {"topic": "rollout.completed"},
    ]
    for state in states:
        Outbox.objects.create(
            kind="webhook", payload={}, team_id=team.pk, webhook=made, created_at=now, due_at=now, **state
        )
    return made


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name is a public one: nothing is looked up."""
    monkeypatch.setattr("apps.audit.services.egress.check_url", lambda url: None)


def test_an_admin_makes_one_and_sees_its_secret_once(
    public: None, team: Team, team_admin: User, signed_in: SignIn
) -> None:
    client = signed_in(team_admin)
    assert "Nobody is told" in client.get("/webhooks/").text
    made = client.post("/webhooks/", {"url": "https://hooks.example/in", "team": team.slug, "topics": ["alert.firing"]})
    stored = Webhook.objects.get()
    assert stored.secret in made.text
    assert made.headers["Cache-Control"] == "no-store"
    assert stored.topics == ["alert.firing"]
    page = client.get("/webhooks/").text
    assert stored.secret not in page
    assert "/in" not in page.replace("/inter", "").replace(
        "/index", ""
    )  # an address may be all that a receiver asks for


def test_a_refused_address_comes_back_with_what_was_typed(team: Team, team_admin: User, signed_in: SignIn) -> None:
    answer = signed_in(team_admin).post("/webhooks/", {"url": "http://127.0.0.1/x", "team": team.slug})
    assert answer.status_code == 400
    assert "http://127.0.0.1/x" in answer.text
    assert Webhook.objects.count() == 0


@pytest.mark.parametrize(
    ("state", "topics"),
    [
        ("", {"alert.firing", "alert.resolved", "rollout.started", "rollout.completed"}),
        ("due", {"rollout.completed"}),
        ("trying", {"alert.resolved"}),
        ("delivered", {"alert.firing"}),
        ("parked", {"rollout.started"}),
    ],
)
def test_the_delivery_log(
    state: str, topics: set[str], hook: Webhook, team_admin: User, signed_in: SignIn, api: Any, team: Team
) -> None:
    answer = signed_in(team_admin).get(f"/webhooks/{hook.pk}/?state={state}")
    assert {row.topic for row in answer.context["page"]} == topics
    rows = api(team_admin, team).get(f"/api/v1/webhooks/{hook.pk}/deliveries?state={state}").json()["results"]
    assert {row["topic"] for row in rows} == topics
    assert not state or {row["status"] for row in rows} == {state}


def test_what_was_given_up_is_sent_again(hook: Webhook, team_admin: User, signed_in: SignIn) -> None:
    parked = Outbox.objects.get(topic="rollout.started")
    client = signed_in(team_admin)
    assert client.post(f"/webhooks/{hook.pk}/{parked.pk}/resend").status_code == 302
    parked.refresh_from_db()
    assert (parked.parked_at, parked.attempts, parked.status) == (None, 0, "due")
    again = client.post(f"/webhooks/{hook.pk}/{parked.pk}/resend")
    assert (again.status_code, "not parked" in again.text) == (409, True)


def test_deleting(hook: Webhook, team_admin: User, signed_in: SignIn) -> None:
    assert signed_in(team_admin).post(f"/webhooks/{hook.pk}/delete").status_code == 302
    assert not Webhook.objects.exists()
    assert not Outbox.objects.exists()


def test_only_admins_of_the_team_see_webhooks(hook: Webhook, operator: User, outsider: User, signed_in: SignIn) -> None:
    for user in (operator, outsider):
        client = signed_in(user)
        assert "hooks.example" not in client.get("/webhooks/").text
        assert client.get(f"/webhooks/{hook.pk}/").status_code == 404
        assert client.post(f"/webhooks/{hook.pk}/delete").status_code == 404
    api = APIClient()
    api.force_login(operator)
    assert api.get(f"/api/v1/webhooks/{hook.pk}/deliveries").status_code == 404


def test_resending_over_rest(hook: Webhook, team_admin: User) -> None:
    api = APIClient()
    api.force_login(team_admin)
    parked = Outbox.objects.get(topic="rollout.started")
    answer = api.post(f"/api/v1/webhooks/{hook.pk}/deliveries/{parked.pk}:resend")
    assert (answer.status_code, answer.json()["status"]) == (200, "due")
