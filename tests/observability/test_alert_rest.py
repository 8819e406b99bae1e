"""REST of alerts and silences, as a pager's bot uses it; and the command line's list."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.access.models import Scope, Team, User
from apps.fleet.models import Node
from apps.observability.alert_models import Alert
from apps.observability.alert_rules import DEFAULTS
from tests.observability.alert_lab import WatchedFleet

Api = Callable[..., APIClient]
pytestmark = pytest.mark.django_db


@pytest.fixture
def node(watched: WatchedFleet) -> Node:
    made = watched.add_node("node-2")
    watched.heat(made)
    watched.run(360)
    return made


@pytest.fixture
def bot(api: Api, operator: User, team: Team) -> APIClient:
    return api(operator, team)


def one(bot: APIClient) -> dict[str, Any]:
    rows: list[dict[str, Any]] = bot.get("/api/v1/alerts").json()["results"]
    (row,) = rows
    return row


def test_an_alert_as_json(node: Node, bot: APIClient) -> None:
    row = one(bot)
    assert (
        row
        | {
            "rule": "gpu-temperature",
            "state": "firing",
            "revision": 1,
            "severity": "ticket",
            "simulated": True,
            "gpus": 8,
            "labels": {"rule": "gpu-temperature", "node": "node-2", "zone": "zone-b", "severity": "ticket"},
            "acknowledged_by": None,
            "owner": None,
            "silenced_by": None,
        }
        == row
    )
    assert len(row["members"]) == 8
    assert (
        row["members"][5] | {"index": 5, "observed": 78.0, "expected": 62.0, "kind": "trend_break"} == row["members"][5]
    )
    assert bot.get(f"/api/v1/alerts/{row['id']}").json() == row


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("state=firing", 1),
        ("state=resolved", 0),
        ("state=all", 1),
        ("rule=gpu-xid", 0),
        ("node=node-2&severity=ticket", 1),
        ("severity=page", 0),
    ],
)
def test_filters(query: str, count: int, node: Node, bot: APIClient) -> None:
    assert bot.get(f"/api/v1/alerts?{query}").json()["count"] == count


def test_a_state_that_does_not_exist_is_refused(node: Node, bot: APIClient) -> None:
    answer = bot.get("/api/v1/alerts?state=angry")
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_parameter")


def test_acknowledging(node: Node, bot: APIClient, watched: WatchedFleet) -> None:
    row = one(bot)
    path = f"/api/v1/alerts/{row['id']}:acknowledge"
    stale = bot.post(path, {"expected_revision": 0}, format="json")
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_revision")
    for _ in range(2):
        done = bot.post(path, {"note": "on it", "expected_revision": 1}, format="json")
        assert (done.status_code, done.json()["acknowledged_by"], done.json()["owner"]) == (200, "operator", "operator")
    back = bot.post(f"/api/v1/alerts/{row['id']}:unacknowledge", {}, format="json")
    assert (back.json()["acknowledged_by"], back.json()["owner"]) == (None, None)
    assert bot.post(f"/api/v1/alerts/{row['id']}:own", {}, format="json").json()["owner"] == "operator"
    watched.cool()
    watched.run(180)
    over = bot.post(path, {}, format="json")
    assert (over.status_code, over.json()["code"]) == (409, "already_resolved")


def test_silences(node: Node, bot: APIClient) -> None:
    body = {
        "matchers": {"node": "node-2"},
        "reason": "fan change",
        "expires_at": (datetime.now(UTC) + timedelta(hours=2)).isoformat(),
    }
    made = bot.post("/api/v1/silences", body, format="json")
    assert made.status_code == 201
    silence = made.json()
    assert (silence["author"], silence["matchers"]) == ("operator", {"node": "node-2"})
    assert one(bot)["silenced_by"] == silence["id"]
    assert bot.get("/api/v1/silences?active=true").json()["count"] == 1
    ended = bot.post(f"/api/v1/silences/{silence['id']}:end", {"reason": "done"}, format="json")
    assert (ended.status_code, ended.json()["ended_by"]) == (200, "operator")
    assert one(bot)["silenced_by"] is None
    assert bot.get("/api/v1/silences?active=true").json()["count"] == 0
    bad = bot.post("/api/v1/silences", body | {"matchers": {"colour": "red"}}, format="json")
    assert (bad.status_code, bad.json()["code"]) == (400, "bad_matchers")


def test_rules(node: Node, bot: APIClient) -> None:
    rows = bot.get("/api/v1/alert-rules").json()["results"]
    assert [row["slug"] for row in rows] == sorted(rule.slug for rule in DEFAULTS)


def test_scopes_roles_and_teams(
    node: Node, api: Api, viewer: User, operator: User, outsider: User, team: Team, other_team: Team
) -> None:
    path = f"/api/v1/alerts/{Alert.objects.get(rule='gpu-temperature').pk}"
    reader = api(operator, team, Scope.READ)
    assert reader.get(path).status_code == 200
    assert reader.post(f"{path}:acknowledge", {}, format="json").json()["code"] == "scope_missing"
    assert api(viewer, team).post(f"{path}:acknowledge", {}, format="json").status_code == 403
    stranger = api(outsider, other_team)
    assert stranger.get(path).status_code == 404
    assert stranger.get("/api/v1/alerts?state=all").json()["count"] == 0
    assert APIClient().get("/api/v1/alerts").status_code == 401
