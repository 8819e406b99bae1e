"""REST of rollouts, as CI and scripts meet it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from apps.access.models import Scope, User
from apps.rollouts.models import Rollout
from tests.rollouts.lab import Lab
from tests.rollouts.test_commands import APPROVAL, FULL, QUICK, waiting

pytestmark = pytest.mark.django_db
__all__ = ["waiting"]
BODY = {"model": "digits", "version": 2, "pool": "default", "strategy": "demo", "reason": "nightly"}


@pytest.fixture
def ci(api: Callable[..., APIClient], lab: Lab, operator: User) -> APIClient:
    """The operator's token, as CI has it: it may start, and not approve."""
    return api(operator, lab.world.team, Scope.READ, Scope.ROLLOUTS_WRITE)


@pytest.fixture
def judge(api: Callable[..., APIClient], lab: Lab, approver: User) -> APIClient:
    return api(approver, lab.world.team, Scope.READ, Scope.ROLLOUTS_APPROVE)


@pytest.fixture
def present(waiting: Rollout) -> Rollout:
    """The waiting rollout, brought from simulated time to the API's clock."""
    Rollout.objects.filter(pk=waiting.pk).update(phase_deadline=timezone.now() + timedelta(hours=1))
    return waiting


def post(client: APIClient, path: str, body: Any, **headers: str) -> Any:
    return client.post(f"/api/v1/{path}", body, format="json", headers=headers)


def test_ci_starts_a_rollout_and_reads_what_became_of_it(lab: Lab, ci: APIClient) -> None:
    lab.version(2)
    answer = post(ci, "rollouts", BODY)
    assert answer.status_code == 201
    made = answer.json()
    assert {name: made[name] for name in ("model", "version", "baseline", "pool", "strategy", "phase")} == {
        "model": "digits", "version": 2, "baseline": 1, "pool": "default", "strategy": "demo", "phase": "pending",
    }  # fmt: skip
    assert [stage["kind"] for stage in made["stages"]] == ["shadow", "canary", "canary", "approval", "full"]
    assert made["requested_by"] == "operator"
    assert "by token test" in made["requested_via"]
    detail = ci.get(f"/api/v1/rollouts/{made['id']}").json()
    assert [row["node"] for row in detail["participants"]] == ["node-1", "node-2", "node-3"]
    for query, found in (
        ("model=digits", 2), ("model=other", 0), ("phase=pending", 1), (f"number={made['number']}", 1),
    ):  # fmt: skip
        assert ci.get(f"/api/v1/rollouts?{query}").json()["count"] == found, query
    assert ci.get("/api/v1/rollouts?number=x").status_code == 400


def test_a_repeated_start_with_the_same_key_is_one_rollout(lab: Lab, ci: APIClient) -> None:
    lab.version(2)
    answers = [post(ci, "rollouts", BODY, **{"Idempotency-Key": "build-7"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    assert Rollout.objects.filter(version__number=2).count() == 1


def test_what_can_not_start_says_why(lab: Lab, ci: APIClient) -> None:
    lab.version(2)
    for changes, status, code in (
        ({"version": 9}, 404, "version_not_found"),
        ({"pool": "nowhere"}, 404, "pool_not_found"),
        ({"strategy": "nothing"}, 404, "strategy_not_found"),
        ({"strategy": "first"}, 409, "gates_needed"),
        ({"version": 1}, 409, "already_serving"),
        ({"reason": ""}, 400, "invalid"),
    ):
        answer = post(ci, "rollouts", BODY | changes)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    stages = {key: value for key, value in BODY.items() if key != "strategy"} | {
        "stages": [QUICK | {"min_samples": 5}, FULL]
    }
    answer = post(ci, "rollouts", stages)
    assert (answer.status_code, answer.json()["code"]) == (400, "too_few_samples")


def test_approval_over_rest(lab: Lab, ci: APIClient, judge: APIClient, present: Rollout) -> None:
    path = f"rollouts/{present.pk}"
    waiting = judge.get("/api/v1/rollouts?waiting=true").json()["results"]
    assert [row["id"] for row in waiting] == [str(present.pk)]
    assert ci.get("/api/v1/rollouts?waiting=true").json()["count"] == 0
    evidence = judge.get(f"/api/v1/{path}/evidence").json()
    rows = {row["metric"]: row for row in evidence["results"]}
    assert (rows["similarity"]["stage"], rows["similarity"]["verdict"]) == (0, "successful")
    assert len(evidence["snapshots"]) == 1

    assert post(ci, f"{path}:approve", {"reason": "me"}).json()["code"] == "scope_missing"
    stale = post(judge, f"{path}:approve", {"reason": "clean", "expected_revision": present.revision - 1})
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_revision")
    assert post(judge, f"{path}:approve", {}).status_code == 400
    answer = post(judge, f"{path}:approve", {"reason": "clean", "expected_revision": present.revision})
    assert answer.status_code == 200
    assert [(row["user"], row["approve"]) for row in answer.json()["approvals"]] == [("approver", True)]
    again = post(judge, f"{path}:reject", {"reason": "no"})
    assert (again.status_code, again.json()["code"]) == (409, "already_decided")
    lab.now = timezone.now()
    lab.until(present, "completed", within_s=60)
    assert ci.get(f"/api/v1/{path}").json()["decision"] == "v2 serves on 3 nodes of pool default."


def test_the_requester_is_refused_even_with_every_scope(
    api: Callable[..., APIClient], operator: User, lab: Lab, present: Rollout
) -> None:
    theirs = api(operator, lab.world.team)
    answer = post(theirs, f"rollouts/{present.pk}:approve", {"reason": "mine"})
    assert answer.status_code == 403


def test_pause_resume_and_abort(lab: Lab, ci: APIClient, start: Callable[..., Rollout]) -> None:
    rollout = start(lab.version(2), stages=[QUICK | {"min_samples": 100_000, "max_duration_s": 3_600}, APPROVAL, FULL])
    lab.until(rollout, "progressing", within_s=30)
    path = f"rollouts/{rollout.pk}"
    paused = post(ci, f"{path}:pause", {"reason": "lunch"}).json()
    assert (paused["phase"], paused["pause_reason"]) == ("paused", "operator")
    assert post(ci, f"{path}:resume", {"reason": "back"}).json()["phase"] == "progressing"
    assert post(ci, f"{path}:abort", {"reason": "wrong"}).json()["phase"] == "aborting"
    assert post(ci, f"{path}:resume", {"reason": "no"}).json()["code"] == "not_paused"


def test_holds_over_rest(lab: Lab, ci: APIClient, judge: APIClient, start: Callable[..., Rollout]) -> None:
    rollout = start(lab.version(2, similarity=0.9), stages=[QUICK, FULL])
    lab.until(rollout, "rolled_back", within_s=60)
    (hold,) = ci.get("/api/v1/holds?active=true").json()["results"]
    assert (hold["model"], hold["version"], hold["digest"]) == ("digits", 2, rollout.artifact.digest)
    assert hold["reason"] == rollout.decision
    refused = post(ci, "rollouts", BODY)
    assert (refused.status_code, refused.json()["code"]) == (409, "held")
    assert "approver" in refused.json()["detail"]
    assert post(ci, f"holds/{hold['id']}:lift", {"reason": "please"}).status_code == 403
    lifted = post(judge, f"holds/{hold['id']}:lift", {"reason": "measured by hand"}).json()
    assert (lifted["active"], lifted["lifted_by"]) == (False, "approver")
    assert ci.get("/api/v1/holds?active=true").json()["count"] == 0
    assert ci.get("/api/v1/holds?active=false").json()["count"] == 1
    placed = post(ci, "holds", {"model": "digits", "version": 2, "reason": "still no"})
    assert placed.status_code == 201
    assert placed.json()["active"]


def test_strategies_over_rest(lab: Lab, ci: APIClient) -> None:
    names = [row["name"] for row in ci.get("/api/v1/strategies").json()["results"]]
    assert names == ["demo", "digits-demo", "first", "standard"]
    made = post(ci, "strategies", {"name": "quick", "stages": [QUICK, APPROVAL, FULL]})
    assert made.status_code == 201
    assert made.json()["stages"][1]["approvers"] == 1
    assert post(ci, "strategies", {"name": "quick", "stages": [FULL]}).json()["code"] == "strategy_exists"
    assert post(ci, "strategies", {"name": "bad", "stages": [APPROVAL, FULL]}).json()["code"] == "bad_plan"


def test_another_team_sees_and_changes_nothing(
    api: Callable[..., APIClient], outsider: User, other_team: Any, present: Rollout
) -> None:
    theirs = api(outsider, other_team)
    for path in ("rollouts", "holds", "strategies"):
        assert theirs.get(f"/api/v1/{path}").json()["count"] == 0
    assert theirs.get(f"/api/v1/rollouts/{present.pk}").status_code == 404
    assert theirs.get(f"/api/v1/rollouts/{present.pk}/evidence").status_code == 404
    for verb in ("approve", "reject", "abort", "pause", "resume"):
        assert post(theirs, f"rollouts/{present.pk}:{verb}", {"reason": "x"}).status_code == 404


def test_lists_take_as_many_queries_for_many_as_for_one(
    lab: Lab, ci: APIClient, start: Callable[..., Rollout], requester: Any
) -> None:
    def count(path: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert ci.get(f"/api/v1/{path}").status_code == 200
        return len(queries)

    def roll_back(seed: int) -> None:
        lab.until(start(lab.version(seed, similarity=0.9), stages=[QUICK, FULL]), "rolled_back", within_s=60)

    roll_back(2)
    count("rollouts")  # a token's first use writes when it was used
    few = {path: count(path) for path in ("rollouts", "holds", "strategies")}
    for seed in range(3, 6):
        roll_back(seed)
    rollout = Rollout.objects.order_by("-number").first()
    assert rollout is not None
    assert {path: count(path) for path in few} == few
    assert count(f"rollouts/{rollout.pk}") <= 10
    assert count(f"rollouts/{rollout.pk}/evidence") <= 10
