"""Reading the registry: versions, aliases with their history, lineage diffs; and what is given up."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import time_machine
from rest_framework.test import APIClient

from aifb import signing
from aifb.trust import Root
from apps.access.actors import SYSTEM, Actor
from apps.access.models import Team, User
from apps.audit.transitions import Stale
from apps.lib.errors import Conflict, DomainError, Forbidden
from apps.models import selectors, services, store
from apps.models.models import AliasMove, ModelVersion, RegisteredModel, TrustRoot
from apps.models.trust import current_root, root_envelopes
from tests.artifacts import Keys, root_envelope

pytestmark = pytest.mark.django_db
Api = Callable[..., APIClient]
Publish = Callable[..., ModelVersion]


@pytest.fixture
def client(api: Api, operator: User, team: Team) -> APIClient:
    return api(operator, team)


@pytest.fixture
def two(publish: Publish) -> tuple[ModelVersion, ModelVersion]:
    """Two versions that differ in weights and in one package."""
    return publish(seed=1), publish(seed=2, packages={"numpy": "2.1"})


def test_lists_show_what_people_look_for(client: APIClient, two: tuple[ModelVersion, ModelVersion]) -> None:
    model = client.get("/api/v1/models").json()["results"][0]
    assert (model["slug"], model["newest"], model["published"], model["aliases"]) == ("digits", 2, 2, {})
    rows = client.get("/api/v1/models/digits/versions").json()["results"]
    assert [row["number"] for row in rows] == [2, 1]
    assert {"state", "aliases", "precision", "model_hash", "data_hash", "env_hash", "build_hash", "notes"} <= set(
        rows[0]
    )
    assert client.get("/api/v1/models/digits/versions/9").json()["code"] == "version_not_found"


def test_lists_take_a_constant_number_of_queries(
    client: APIClient, publish: Publish, django_assert_max_num_queries: Callable[..., object]
) -> None:
    for seed in range(4):
        publish(seed=seed)
    with django_assert_max_num_queries(9):  # type: ignore[attr-defined]
        client.get("/api/v1/models/digits/versions")
    with django_assert_max_num_queries(7):  # type: ignore[attr-defined]
        client.get("/api/v1/models")


def test_what_an_alias_meant_at_a_time(
    client: APIClient, two: tuple[ModelVersion, ModelVersion], now: datetime
) -> None:
    for version, hours in ((1, 1), (2, 2), (1, 3)):
        with time_machine.travel(now + timedelta(hours=hours), tick=False):
            body = {"version": version, "reason": f"at {hours}"}
            assert client.put("/api/v1/models/digits/aliases/stable", body, format="json").status_code == 200
    path = "/api/v1/models/digits/aliases/stable"
    assert client.get(path).json() == {"model": "digits", "name": "stable", "version": 1, "revision": 3}
    history = client.get(f"{path}/history").json()["results"]
    assert [(row["version"], row["reason"]) for row in history] == [(1, "at 3"), (2, "at 2"), (1, "at 1")]
    at = {
        hours: client.get(f"{path}/at", {"at": (now + timedelta(hours=hours)).isoformat()}) for hours in (0, 1, 2.5, 9)
    }
    assert [at[hours].json().get("version") for hours in (1, 2.5, 9)] == [1, 2, 1]
    assert (at[0].status_code, at[0].json()["code"]) == (404, "alias_not_set")
    assert client.get(f"{path}/at", {"at": "yesterday"}).json()["code"] == "bad_parameter"


def test_moving_an_alias_to_where_it_is_leaves_no_trace(
    two: tuple[ModelVersion, ModelVersion], operator: User, now: datetime
) -> None:
    actor, model = Actor.person(operator), two[0].model
    for _ in range(2):
        services.move_alias(model=model, name="stable", version=two[0], actor=actor, reason="r", now=now)
    assert AliasMove.objects.count() == 1


def test_a_stale_revision_does_not_move_an_alias(
    two: tuple[ModelVersion, ModelVersion], operator: User, now: datetime
) -> None:
    actor, model = Actor.person(operator), two[0].model
    alias = services.move_alias(model=model, name="stable", version=two[0], actor=actor, reason="r", now=now)
    seen = alias.revision
    services.move_alias(model=model, name="stable", version=two[1], actor=actor, reason="r", now=now)
    with pytest.raises(Stale):
        services.move_alias(
            model=model, name="stable", version=two[0], actor=actor, reason="r", now=now, expected_revision=seen
        )
    assert AliasMove.objects.count() == 2


def test_the_champion_is_moved_by_approvers_and_by_rollouts(
    two: tuple[ModelVersion, ModelVersion], operator: User, approver: User, now: datetime
) -> None:
    model = two[0].model
    with pytest.raises(Forbidden):
        services.move_alias(
            model=model, name="champion", version=two[0], actor=Actor.person(operator), reason="r", now=now
        )
    for actor, version in ((Actor.person(approver), two[0]), (SYSTEM, two[1])):
        services.move_alias(model=model, name="champion", version=version, actor=actor, reason="r", now=now)
    assert selectors.get_alias(model, "champion").version == two[1]


def test_an_alias_needs_a_published_version_of_its_model_and_a_reason(
    publish: Publish, team: Team, operator: User, now: datetime
) -> None:
    version, other, actor = publish(seed=1), publish("letters", seed=2), Actor.person(operator)
    reserved = services.reserve_version(slug="digits", team=team, actor=actor, now=now)
    for wrong, reason in ((other, "r"), (reserved, "r"), (version, "  ")):
        with pytest.raises(DomainError):
            services.move_alias(model=version.model, name="a", version=wrong, actor=actor, reason=reason, now=now)


def test_the_diff_says_where_to_look(client: APIClient, two: tuple[ModelVersion, ModelVersion]) -> None:
    diff = client.get("/api/v1/models/digits/lineage-diff", {"before": 1, "after": 2}).json()
    parts = {part["part"]: part for part in diff["parts"]}
    assert {name: part["same"] for name, part in parts.items()} == {
        "model": False, "data": True, "env": False, "build": True,
    }  # fmt: skip
    assert (parts["model"]["changed"], parts["env"]["changed"]) == (["w"], ["numpy"])
    assert not diff["graph_changed"]
    assert "digits v1 to digits v2 moved: model (the weights" in diff["sentence"]
    assert client.get("/api/v1/models/digits/lineage-diff?before=1").json()["code"] == "bad_parameter"


def test_a_model_s_promise_can_be_changed(client: APIClient, two: tuple[ModelVersion, ModelVersion]) -> None:
    answer = client.patch("/api/v1/models/digits", {"slo_latency_ms": 250}, format="json")
    assert (answer.status_code, answer.json()["slo_latency_ms"]) == (200, 250)
    assert RegisteredModel.objects.get().slo_latency_ms == 250
    assert client.patch("/api/v1/models/digits", {"slo_latency_ms": 0}, format="json").status_code == 400


def test_numbers_never_published_are_given_up(publish: Publish, team: Team, operator: User, now: datetime) -> None:
    publish(seed=1)
    services.reserve_version(slug="digits", team=team, actor=Actor.person(operator), now=now)
    assert services.abandon_stale(now=now + timedelta(hours=23)) == 0
    assert services.abandon_stale(now=now + timedelta(hours=25)) == 1
    assert list(ModelVersion.objects.order_by("number").values_list("state", flat=True)) == ["published", "abandoned"]


def test_broken_uploads_are_swept(home: Path, now: datetime) -> None:
    incoming = home / "artifacts" / "incoming"
    incoming.mkdir(parents=True)
    for name, hours in (("old.part", 25), ("new.part", 1)):
        (incoming / name).write_bytes(b"x")
        then = (now - timedelta(hours=hours)).timestamp()
        os.utime(incoming / name, (then, then))
    assert store.sweep(now=now) == 1
    assert [path.name for path in incoming.iterdir()] == ["new.part"]


def test_roots_follow_each_other(trust_root: Root, keys: Keys, now: datetime) -> None:
    assert current_root().version == 1
    fresh = signing.generate_key()
    second = root_envelope(keys.root, fresh, keys.director, version=2)
    services.add_root(envelope=second, actor=SYSTEM, now=now)
    assert current_root().roles["release"].keyids == {signing.keyid(fresh.public_key())}
    assert root_envelopes(after=1) == [second]
    assert root_envelopes() == [keys.envelope, second]


def test_a_root_that_does_not_follow_is_refused(trust_root: Root, keys: Keys, now: datetime) -> None:
    stranger = signing.generate_key()
    for envelope, code in (
        (root_envelope(keys.root, keys.release, keys.director, version=3), "bad_root_chain"),
        (root_envelope(stranger, keys.release, keys.director, version=2, signers=[stranger]), "unknown_key"),
        (b"{}", "bad_envelope"),
    ):
        with pytest.raises(DomainError) as refused:
            services.add_root(envelope=envelope, actor=SYSTEM, now=now)
        assert refused.value.code == code
    assert TrustRoot.objects.count() == 1


def test_nothing_is_published_under_an_expired_root(publish: Publish, now: datetime, keys: Keys) -> None:
    with time_machine.travel(now + timedelta(days=400), tick=False), pytest.raises(Conflict) as refused:
        services._verified_manifest(b"", now + timedelta(days=400))
    assert refused.value.code == "root_expired"
