"""The fleet over REST, as CI and people use it."""

from __future__ import annotations

import pytest

from apps.access.models import Scope
from apps.fleet import assignments, credentials, services
from apps.fleet.models import Node
from protocol.messages import Role
from tests.fleet import builders


@pytest.fixture
def ci(api, world):
    return api(world.operator, world.team)


@pytest.fixture
def node(world, now):
    return builders.enrol(world, "node-1", now)[0]


def test_nodes_and_what_they_run(ci, world, node, now, enrolled):
    spec = services.DesiredSpec(world.artifact(1), Role.BASELINE, 100)
    services.set_desired(node=node, model=world.model, specs=[spec])
    assignments.compile_assignments(now)
    enrolled("node-2")
    rows = ci.get("/api/v1/nodes").data["results"]
    assert [row["name"] for row in rows] == ["node-1", "node-2"]
    assert {key: rows[0][key] for key in ("zone", "phase", "pool", "in_sync", "overdue", "last_seen_at")} == {
        "zone": "zone-a",
        "phase": "accepted",
        "pool": "default",
        "in_sync": False,
        "overdue": False,
        "last_seen_at": None,
    }
    (deployment,) = rows[0]["deployments"]
    assert (deployment["model"], deployment["version"], deployment["state"]) == ("digits", 1, "assigned")
    detail = ci.get("/api/v1/nodes/node-1").data
    assert (detail["sequence"], detail["observed_sequence"], detail["refusals"]) == (1, 0, [])
    assert ci.get("/api/v1/nodes?phase=active").data["results"] == []


def test_join_tokens_are_shown_once(ci, world, now):
    answer = ci.post("/api/v1/join-tokens", {"pool": "default"}, format="json")
    assert answer.status_code == 201
    assert answer["Cache-Control"] == "no-store"
    assert credentials.enrol(builders.Host("node-1").request(answer.data["token"]), now=now).phase == "accepted"
    ci.post("/api/v1/join-tokens", {"pool": "default", "node_name": "node-9"}, format="json")
    (left,) = ci.get("/api/v1/join-tokens").data["results"]
    assert (left["node_name"], left["pool"]) == ("node-9", "default")
    assert "token" not in left


def test_verbs_take_a_reason_and_a_revision(ci, node, now):
    builders.activate(node, now)
    url = "/api/v1/nodes/node-1:cordon"
    assert ci.post(url, {}, format="json").status_code == 400
    stale = ci.post(url, {"reason": "Hot.", "expected_revision": node.revision - 1}, format="json")
    assert (stale.status_code, stale.data["code"]) == (409, "stale_revision")
    done = ci.post(url, {"reason": "Hot.", "expected_revision": node.revision}, format="json")
    assert (done.status_code, done.data["phase"]) == (200, "cordoned")
    again = ci.post(url, {"reason": "Hot."}, format="json")
    assert (again.status_code, again.data["code"]) == (409, "illegal_move")
    assert ci.post("/api/v1/nodes/node-1:uncordon", {"reason": "Cool."}, format="json").data["phase"] == "active"


def test_a_repeated_verb_with_its_key_moves_once(ci, node, now):
    builders.activate(node, now)
    send = {"path": "/api/v1/nodes/node-1:cordon", "data": {"reason": "Hot."}, "format": "json"}
    first = ci.post(**send, headers={"Idempotency-Key": "k1"})
    again = ci.post(**send, headers={"Idempotency-Key": "k1"})
    assert (first.status_code, again.status_code, again["Idempotency-Replayed"]) == (200, 200, "true")
    assert Node.objects.get(pk=node.pk).revision == node.revision + 1


def test_scopes_and_teams(api, world, node, outsider, other_team):
    reader = api(world.operator, world.team, Scope.READ)
    assert reader.get("/api/v1/nodes").status_code == 200
    assert reader.post("/api/v1/nodes/node-1:cordon", {"reason": "x"}, format="json").status_code == 403
    assert reader.post("/api/v1/join-tokens", {"pool": "default"}, format="json").status_code == 403
    stranger = api(outsider, other_team)
    assert stranger.get("/api/v1/nodes").data["results"] == []
    assert stranger.get("/api/v1/pools").data["results"] == []
    assert stranger.get("/api/v1/nodes/node-1").status_code == 404
    assert stranger.post("/api/v1/nodes/node-1:ban", {"reason": "x"}, format="json").status_code == 404
    assert stranger.post("/api/v1/join-tokens", {"pool": "default"}, format="json").status_code == 404


def test_a_viewer_changes_nothing(api, world, node, viewer):
    watching = api(viewer, world.team)
    answer = watching.post("/api/v1/nodes/node-1:quarantine", {"reason": "x"}, format="json")
    assert (answer.status_code, answer.data["code"]) == (403, "role_missing")


def test_pools(ci, node):
    (pool,) = ci.get("/api/v1/pools").data["results"]
    assert pool == {
        "slug": "default",
        "description": "",
        "auto_accept": True,
        "requires_approval": True,
        "poll_interval_s": 30.0,
        "nodes": 1,
    }
