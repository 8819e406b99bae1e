"""Feedback in, single requests out."""

from __future__ import annotations

import pytest

from apps.access.models import Scope
from apps.observability.models import Feedback
from tests.observability.batches import batch, inference, send


@pytest.fixture
def ci(api, world):
    return api(world.operator, world.team, Scope.FEEDBACK_WRITE, Scope.READ)


def labels(*pairs):
    return [{"request_id": key, "label": label} for key, label in pairs]


def test_labels_are_stored_and_replaced(ci):
    assert ci.post("/api/v1/feedback", labels(("a", "1"), ("b", "2")), format="json").data == {"stored": 2}
    assert ci.post("/api/v1/feedback", labels(("a", "3")), format="json").data == {"stored": 1}
    assert dict(Feedback.objects.values_list("request_id", "label")) == {"a": "3", "b": "2"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ([{"request_id": "a"}], "invalid"),
        ({"request_id": "a", "label": "1"}, "invalid"),
        (labels(("x" * 65, "1")), "invalid"),
        (labels(*((str(n), "1") for n in range(1_001))), "too_many_labels"),
    ],
)
def test_feedback_that_cannot_be(ci, body, code):
    answer = ci.post("/api/v1/feedback", body, format="json")
    assert (answer.status_code, answer.data["code"]) == (400, code)
    assert not Feedback.objects.exists()


def test_scopes(api, world, viewer):
    assert api(world.operator, world.team, Scope.READ).post("/api/v1/feedback", [], format="json").status_code == 403
    assert api(viewer, world.team).post("/api/v1/feedback", labels(("a", "1")), format="json").status_code == 403


def test_one_request(ci, api, enrolled, outsider, other_team):
    agent = enrolled("node-1")
    send(agent, batch(agent, 1, inference("a", status=503, error_code="queue_full")))
    (row,) = ci.get("/api/v1/requests/a").data
    assert (row["status"], row["error_code"], row["digest"]) == (503, "queue_full", "01" * 64)
    assert ci.get("/api/v1/requests/b").status_code == 404
    assert api(outsider, other_team).get("/api/v1/requests/a").status_code == 404
