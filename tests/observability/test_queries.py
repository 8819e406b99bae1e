"""The questions that rollouts and pages ask of the series."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from apps.access.actors import Actor
from apps.observability import services, timeseries
from apps.observability.models import Feedback
from tests.observability.batches import ROLLOUT, batch, comparison, inference, node_ids, send

HOUR = timedelta(hours=1)


@pytest.fixture
def agent(enrolled):
    return enrolled("node-1")


@pytest.fixture
def other(enrolled):
    return enrolled("node-2")


def feedback(world, *labels):
    services.record_feedback(
        team=world.team,
        labels=[{"request_id": key, "label": label} for key, label in labels],
        actor=Actor.person(world.operator),
        now=datetime.now(UTC),
    )


def test_evidence_names_versions_nodes_and_times(agent, other, now):
    send(agent, batch(agent, 1, inference("a"), inference("b", version=2), inference("c", version=3)))
    send(agent, batch(agent, 2, inference("early", ago_s=1_800.0), inference("m", model="other")))
    send(other, batch(other, 1, inference("elsewhere")))
    since = now - timedelta(minutes=10)
    found = timeseries.evidence_requests("digits", [1, 2], node_ids(agent), since, now + HOUR)
    assert [(row.request_id, row.version, row.node_id) for row in found] == [
        ("a", 1, agent.node),
        ("b", 2, agent.node),
    ]
    assert (found[0].batch_size, found[0].status, found[0].total_us, found[0].label) == (4, 200, 1_000, None)
    both = timeseries.evidence_requests("digits", [1], node_ids(agent, other), since, now + HOUR)
    assert [row.request_id for row in both] == ["a", "elsewhere"]


def test_evidence_keeps_its_order_when_late_rows_come(agent, now):
    send(agent, batch(agent, 1, inference("b", ago_s=5.0)))
    send(agent, batch(agent, 2, inference("a", ago_s=50.0)))
    found = timeseries.evidence_requests("digits", [1], node_ids(agent), now - HOUR, now + HOUR)
    assert [row.request_id for row in found] == ["b", "a"]
    assert found[1].time < found[0].time


def test_labels_come_early_late_and_again(world, agent, now):
    feedback(world, ("a", "3"), ("b", "7"))
    send(agent, batch(agent, 1, inference("a", score=0.25), inference("b", score=float("nan")), inference("c")))
    feedback(world, ("c", "1"), ("a", "9"), ("a", "7"))
    found = timeseries.evidence_requests("digits", [1], node_ids(agent), now - HOUR, now + HOUR)
    assert {row.request_id: row.label for row in found} == {"a": "7", "b": "7", "c": "1"}
    known = timeseries.labelled("digits", [1], now - HOUR)
    assert known == [(1, "7", 0.25, "7"), (1, "7", pytest.approx(0.9), "1")]


def test_another_teams_label_does_not_count(agent, other_team, outsider, now):
    send(agent, batch(agent, 1, inference("a")))
    services.record_feedback(
        team=other_team, labels=[{"request_id": "a", "label": "0"}], actor=Actor.person(outsider), now=now
    )
    assert Feedback.objects.count() == 1
    assert timeseries.labelled("digits", [1], now - HOUR) == []


def test_pairs_belong_to_one_attempt_of_one_stage(agent, now):
    rows = [comparison("a"), comparison("b", attempt=2), comparison("c", stage=1), comparison("d", dropped_before=3)]
    send(agent, batch(agent, 1, *rows))
    found = timeseries.comparison_pairs(UUID(ROLLOUT), 0, 1, now - HOUR)
    assert [(row.request_id, row.dropped_before) for row in found] == [("a", 0), ("d", 3)]
    assert found[0].sample == "A quick brown fox."
    assert timeseries.comparison_pairs(UUID(ROLLOUT), 0, 1) == found


def test_worst_pairs_come_first(agent):
    similarities = {"a": 0.9, "b": 0.1, "c": 1.5, "d": -0.5, "e": float("nan")}
    send(agent, batch(agent, 1, *(comparison(key, similarity=value) for key, value in similarities.items())))
    worst = timeseries.worst_pairs(UUID(ROLLOUT), 0, 1, limit=3)
    assert [(row.request_id, row.similarity) for row in worst] == [
        ("d", 0.0),
        ("b", pytest.approx(0.1)),
        ("a", pytest.approx(0.9)),
    ]
    everything = {row.request_id: row.similarity for row in timeseries.comparison_pairs(UUID(ROLLOUT), 0, 1)}
    assert (everything["c"], everything["e"]) == (1.0, None)


def test_minutes(agent, now):
    noon = now.replace(second=0, microsecond=0) - timedelta(minutes=10)
    ago = (datetime.now(UTC) - noon).total_seconds()
    rows = [
        inference(ago_s=ago - 1),
        inference(ago_s=ago - 2, status=500),
        inference(ago_s=ago - 3, total_us=900_000),
        inference(ago_s=ago - 4, status=429),
        inference(ago_s=ago - 61),
        inference(ago_s=ago - 62, version=2),
    ]
    send(agent, batch(agent, 1, *rows))
    found = timeseries.minute_counts("digits", node_ids(agent), noon, noon + HOUR, slo_ms=500)
    assert found == [
        (noon, 1, 4, 1, 2),
        (noon + timedelta(minutes=1), 1, 1, 0, 1),
        (noon + timedelta(minutes=1), 2, 1, 0, 1),
    ]


def test_totals_by_version_and_node(agent, other, now):
    send(agent, batch(agent, 1, *(inference(total_us=n * 1_000) for n in range(1, 101)), inference(version=2)))
    send(other, batch(other, 1, inference(status=503)))
    found = timeseries.requests_by_version("digits", [1], now - HOUR)
    totals = {row.node_id: (row.requests, row.errors, row.p50_us, row.p99_us) for row in found}
    assert totals == {agent.node: (100, 0, 50_000, 99_000), other.node: (1, 1, 1_000, 1_000)}


def test_one_request_for_its_team(agent, world, other_team):
    send(agent, batch(agent, 1, inference("a", digest=b"\x0a" * 64)))
    (row,) = timeseries.request("a", [world.team.pk])
    assert (row.digest, row.node_id, row.compute_us) == ("0a" * 64, agent.node, 900)
    assert timeseries.request("a", [other_team.pk]) == []


def test_pairs_that_a_stranger_sends_for_a_rollout_are_not_even_read(agent, other, now):
    """Another team's node may know a rollout's id; its rows must neither count nor fill the worker's memory."""
    send(agent, batch(agent, 1, comparison("mine")))
    send(other, batch(other, 1, *[comparison(similarity=0.1) for _ in range(50)]))
    found = timeseries.comparison_pairs(UUID(ROLLOUT), 0, 1, now - HOUR, node_ids(agent))
    assert [row.request_id for row in found] == ["mine"]
    assert timeseries.comparison_pairs(UUID(ROLLOUT), 0, 1, now - HOUR, []) == []
