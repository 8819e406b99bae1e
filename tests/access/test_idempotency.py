"""`Idempotency-Key` over HTTP: one effect, one answer, whatever is repeated, raced or killed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.db import connection, transaction
from rest_framework.test import APIClient

from apps.access import idempotency, services
from apps.access.actors import SYSTEM
from apps.access.models import IdempotencyKey, Role, Team, User
from apps.audit.models import Event
from apps.models.models import ModelVersion

Api = Callable[..., APIClient]
PATH = "/api/v1/models/digits/versions:reserve"


def reserve(client: APIClient, key: str, notes: str = "", path: str = PATH) -> tuple[int, dict[str, object], str]:
    answer = client.post(path, {"notes": notes}, format="json", HTTP_IDEMPOTENCY_KEY=key)
    return answer.status_code, answer.json(), answer.get("Idempotency-Replayed", "")


@pytest.mark.django_db
def test_a_repeat_gives_the_first_answer_and_has_no_effect(api: Api, operator: User, team: Team) -> None:
    client = api(operator, team)
    status, body, replayed = reserve(client, "k1")
    assert (status, replayed) == (201, "")
    assert reserve(client, "k1") == (201, body, "true")
    assert ModelVersion.objects.count() == 1
    assert Event.objects.filter(verb="version.reserved").count() == 1


@pytest.mark.django_db
def test_another_key_is_another_request(api: Api, operator: User, team: Team) -> None:
    client = api(operator, team)
    assert [reserve(client, key)[1]["number"] for key in ("a", "b")] == [1, 2]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("notes", "path"), [("other", PATH), ("", PATH.replace("digits", "letters"))], ids=["body", "address"]
)
def test_the_same_key_for_something_else_is_refused(
    api: Api, operator: User, team: Team, notes: str, path: str
) -> None:
    client = api(operator, team)
    reserve(client, "k1")
    status, body, _ = reserve(client, "k1", notes, path)
    assert (status, body["code"]) == (422, "idempotency_key_reused")
    assert ModelVersion.objects.count() == 1


@pytest.mark.django_db
def test_keys_are_each_user_s_own(api: Api, operator: User, approver: User, team: Team) -> None:
    assert reserve(api(operator, team), "k1")[1]["number"] == 1
    assert reserve(api(approver, team), "k1")[1]["number"] == 2


@pytest.mark.django_db
def test_an_error_is_not_kept(api: Api, viewer: User, team: Team, now: datetime) -> None:
    client = api(viewer, team)
    assert reserve(client, "k1")[0] == 403
    services.set_membership(user=viewer, team=team, role=Role.OPERATOR, actor=SYSTEM, now=now)
    assert reserve(client, "k1")[0] == 201


@pytest.mark.django_db
@pytest.mark.parametrize("key", ["x" * 201, "ünïcode", "a\tb"])
def test_a_malformed_key_is_refused(api: Api, operator: User, team: Team, key: str) -> None:
    assert reserve(api(operator, team), key)[1]["code"] == "bad_idempotency_key"


@pytest.mark.django_db
def test_answers_are_kept_for_a_day(api: Api, operator: User, team: Team, now: datetime) -> None:
    client = api(operator, team)
    reserve(client, "k1")
    assert services.forget_idempotency_keys(now=now + timedelta(hours=23)) == 0
    assert services.forget_idempotency_keys(now=now + timedelta(hours=25)) == 1
    assert not IdempotencyKey.objects.exists()


def in_threads(count: int, work: Callable[[], None]) -> None:
    def run() -> None:
        try:
            work()
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.django_db(transaction=True)
def test_a_race_has_one_winner(api: Api, operator: User, team: Team) -> None:
    clients = [api(operator, team) for _ in range(6)]
    start, answers = threading.Barrier(6), []

    def work() -> None:
        client = clients.pop()
        start.wait()
        for key in ("a", "b", "c", "d"):
            answers.append((key, *reserve(client, key)))

    in_threads(6, work)
    assert ModelVersion.objects.count() == 4
    numbers = {key: {body["number"] for k, status, body, _ in answers if k == key and status == 201} for key in "abcd"}
    assert sorted(number for each in numbers.values() for number in each) == [1, 2, 3, 4]
    assert {body["code"] for _, status, body, _ in answers if status != 201} <= {"in_progress"}
    firsts = Counter(key for key, status, _, replayed in answers if status == 201 and not replayed)
    assert firsts == {"a": 1, "b": 1, "c": 1, "d": 1}


@pytest.mark.django_db(transaction=True)
def test_while_the_first_is_at_work_a_repeat_is_told_so(api: Api, operator: User, team: Team) -> None:
    client, answers = api(operator, team), []
    with transaction.atomic():
        idempotency._lock(operator, "k1")  # as the first request holds it until its effect has committed
        in_threads(1, lambda: answers.append(reserve(client, "k1")))
    assert [(status, body["code"]) for status, body, _ in answers] == [(409, "in_progress")]
    assert reserve(client, "k1")[0] == 201


@pytest.mark.django_db(transaction=True)
def test_a_request_that_dies_leaves_neither_effect_nor_answer(
    api: Api, operator: User, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = api(operator, team)

    def die(*args: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(idempotency, "_store", die)
        with pytest.raises(SystemExit):
            reserve(client, "k1")
    assert not ModelVersion.objects.exists()
    assert reserve(client, "k1")[:1] == (201,)


@pytest.mark.django_db
def test_a_token_of_another_team_is_not_given_the_first_ones_answer(
    api: Api, operator: User, team: Team, other_team: Team, now: datetime
) -> None:
    """Both tokens are the same person's, but each reaches into its own team only."""
    services.set_membership(user=operator, team=other_team, role=Role.OPERATOR, actor=SYSTEM, now=now)
    assert reserve(api(operator, team), "k1")[0] == 201
    status, body, replayed = reserve(api(operator, other_team), "k1")
    assert (status, body["code"], replayed) == (422, "idempotency_key_reused", "")
