"""Ingest: acknowledged means stored, once and in order; nothing a node sends jams it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.db import DatabaseError, connection

from apps.audit.models import RestoreEpoch
from apps.fleet.models import Node
from apps.observability import services, store, timeseries
from apps.observability.models import TelemetryCursor
from tests.observability.batches import batch, comparison, inference, node_ids, send


@pytest.fixture
def agent(enrolled):
    return enrolled("node-1")


def stored(agent):
    """The request ids in the log, in order of arrival."""
    now = datetime.now(UTC)
    found = timeseries.evidence_requests("digits", [1, 2], node_ids(agent), now - timedelta(days=2), now + timedelta(1))
    return [row.request_id for row in found]


def test_a_batch_is_stored_and_acknowledged(agent):
    answer = send(agent, batch(agent, 1, inference("a"), inference("b"), comparison("c")))
    assert answer.status_code == 200
    assert answer.json() == {"boot_id": str(agent.boot_id), "seq": 1, "dropped_rows": 0}
    assert set(stored(agent)) == {"a", "b"}


def test_a_repeat_is_acknowledged_and_not_stored(agent):
    message = batch(agent, 1, inference("a"))
    send(agent, message)
    assert send(agent, message).json()["seq"] == 1
    assert stored(agent) == ["a"]


def test_a_gap_says_where_to_go_on(agent):
    assert send(agent, batch(agent, 2, inference())).json()["stored_seq"] == 0
    send(agent, batch(agent, 1, inference("a")))
    answer = send(agent, batch(agent, 3, inference("c")))
    assert (answer.status_code, answer.json()["code"], answer.json()["stored_seq"]) == (409, "sequence_gap", 1)
    assert stored(agent) == ["a"]


@pytest.mark.parametrize("boot_known", [True, False])
def test_after_a_restore_the_batches_in_between_are_given_up_once(agent, boot_known):
    """The backup knew batch 1 of this boot, or nothing of it; the node has forgotten all that was acknowledged."""
    if boot_known:
        send(agent, batch(agent, 1, inference("a")))
    assert send(agent, batch(agent, 7, inference("g"))).status_code == 409
    RestoreEpoch.objects.create(epoch=1, at=datetime.now(UTC), reason="The disk died.")
    assert send(agent, batch(agent, 7, inference("g"))).json()["seq"] == 7
    assert send(agent, batch(agent, 9, inference("i"))).json()["stored_seq"] == 7
    assert send(agent, batch(agent, 8, inference("h"))).json()["seq"] == 8
    assert stored(agent)[-2:] == ["g", "h"]


def test_loss_duplication_and_reordering_leave_every_row_once(agent):
    """Batches go out at random, twice or late; the sender follows the protocol until all are acknowledged."""
    chance = random.Random(7)
    batches = {seq: batch(agent, seq, inference(f"r{seq:02}")) for seq in range(1, 16)}
    acknowledged = 0
    while acknowledged < len(batches):
        answer = send(agent, batches[chance.randint(max(1, acknowledged - 2), min(15, acknowledged + 3))])
        answer_lost = chance.random() < 0.3
        if answer.status_code == 200 and not answer_lost:
            acknowledged = max(acknowledged, answer.json()["seq"])
        elif answer.status_code == 409 and not answer_lost:
            acknowledged = answer.json()["stored_seq"]
    assert stored(agent) == [f"r{seq:02}" for seq in range(1, 16)]


def test_a_new_boot_counts_from_one(agent):
    send(agent, batch(agent, 1, inference("a")))
    send(agent, batch(agent, 1, inference("b"), boot_id=str(uuid4())))
    assert set(stored(agent)) == {"a", "b"}
    assert TelemetryCursor.objects.count() == 2


def test_times_are_the_nodes_plus_its_offset(agent):
    now = datetime.now(UTC)
    send(agent, batch(agent, 1, inference("a", ago_s=3_601.0), clock_offset_s=3_600.0))
    (row,) = timeseries.evidence_requests("digits", [1], node_ids(agent), now - timedelta(minutes=1), now)
    assert row.request_id == "a"


@pytest.mark.parametrize(
    "bad",
    [
        {"ago_s": -700.0},  # 11 minutes ahead
        {"ago_s": 60 * 3_600.0},  # older than the retention
        {"time_unix_us": 1 << 62},
        {"time_unix_us": -(1 << 62)},
        {"deployment": "none"},
        {"digest": b"short"},
        {"model": "Not a slug"},
        {"model": ""},
        {"total_us": (1 << 32) - 1},
        {"version": 1 << 31},
    ],
)
def test_rows_that_cannot_be_are_dropped_and_counted_and_the_rest_is_kept(agent, bad):
    answer = send(agent, batch(agent, 1, inference("bad", **bad), inference("good")))
    assert answer.json()["dropped_rows"] == 1
    assert stored(agent) == ["good"]
    assert TelemetryCursor.objects.get().dropped_rows == 1


@pytest.mark.parametrize("offset_s", [float("nan"), float("inf"), 1e308])
def test_an_absurd_offset_counts_as_none(agent, offset_s):
    send(agent, batch(agent, 1, inference("a"), clock_offset_s=offset_s))
    assert stored(agent) == ["a"]


def test_texts_are_cut_and_cleaned(agent):
    row = inference("x" * 99, error_code="e" * 99, session_id="s" * 999, predicted_label="a\x00b")
    assert send(agent, batch(agent, 1, row)).json()["dropped_rows"] == 0
    (found,) = timeseries.request("x" * 64, [_team(agent)])
    assert (found.predicted_label, len(found.error_code)) == ("ab", 63)


def test_what_is_no_number_is_null(agent):
    nan = float("nan")
    send(agent, batch(agent, 1, inference("a", entropy=nan, score=nan)))
    now = datetime.now(UTC)
    (row,) = timeseries.evidence_requests("digits", [1], node_ids(agent), now - timedelta(minutes=5), now)
    assert (row.entropy, row.score) == (None, None)


def test_a_node_speaks_for_itself_only(agent, enrolled):
    other = enrolled("node-2")
    answer = send(agent, batch(other, 1, inference()))
    assert (answer.status_code, answer.json()["code"]) == (403, "wrong_node")


@pytest.mark.parametrize("changes", [{"seq": 0}, {"seq": 1 << 63}, {"boot_id": "boot"}])
def test_batches_that_cannot_be(agent, changes):
    answer = send(agent, batch(agent, **({"seq": 1} | changes)))
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_batch")


def test_bodies_that_are_no_batch(agent):
    assert send(agent, b"\xff\xff").json()["code"] == "bad_batch"
    assert send(agent, b"x" * ((4 << 20) + 1)).status_code == 413


def test_an_empty_batch_advances_the_cursor(agent):
    assert send(agent, batch(agent, 1)).json()["seq"] == 1
    assert send(agent, batch(agent, 2, inference("a"))).json()["seq"] == 2


def test_a_failed_insert_does_not_advance_the_cursor(agent):
    """Whatever goes wrong in between, rows and cursor commit together or not at all."""
    agent.client.raise_request_exception = False
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE inference_log ADD CONSTRAINT no_sevens CHECK (version <> 7)")
    assert send(agent, batch(agent, 1, inference(version=7))).status_code == 500
    assert not TelemetryCursor.objects.exists()
    assert send(agent, batch(agent, 1, inference("a"))).json()["seq"] == 1


def _team(agent):
    return Node.objects.get(pk=agent.node).team_id


# upkeep


def parts(series="inference_log"):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid WHERE inhparent = %s::regclass",
            [series],
        )
        return {name for (name,) in cursor.fetchall()}


def test_days_are_made_ahead_and_dropped_after_the_retention(agent, settings):
    if store.is_timescale():
        pytest.skip("hypertables make their own chunks")
    now = datetime.now(UTC)
    services.keep_series(now=now)
    assert {f"inference_log_p{now + timedelta(days=n):%Y%m%d}" for n in range(4)} <= parts()
    send(agent, batch(agent, 1, inference("old", ago_s=47 * 3_600.0), inference("new")))
    assert set(stored(agent)) == {"old", "new"}
    services.keep_series(now=now + timedelta(hours=25))
    assert stored(agent) == ["new"]
    services.keep_series(now=now + timedelta(days=3, hours=1))
    assert stored(agent) == []


def test_a_day_too_far_ahead_is_not_made(db):
    if store.is_timescale():
        pytest.skip("hypertables make their own chunks")
    with pytest.raises(DatabaseError, match="too far ahead"):
        store.ensure_days("inference_log", [datetime.now(UTC).date() + timedelta(days=30)])
