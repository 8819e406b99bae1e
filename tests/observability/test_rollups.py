"""Minutes, hours and days against the same sums made by numpy, on whichever store this database has.

Committed for real: TimescaleDB refreshes outside of transactions only.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from django.db import connection

from apps.observability import rollups, services, store, timeseries
from apps.observability.models import DirtyMinute, Rollup
from protocol.metrics import GPU, Kind
from tests.observability.batches import batch, give_gpus, gpu_block, inference, send

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
LEVELS = {"gpu_minute": MINUTE, "gpu_hour": HOUR, "gpu_day": DAY}


@pytest.fixture
def agent(enrolled):
    return enrolled("node-1")


@pytest.fixture
def gpus(agent):
    return give_gpus(agent)


def table(name):
    """The rows of a rollup, as dicts by (bucket, GPU)."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {name}")
        names = [column.name for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {(row.pop("time"), row.pop("gpu")): row for row in rows}


class Sent:
    """Everything that was sent, and what a rollup must make of it."""

    def __init__(self, agent, gpus):
        self.agent, self.gpus, self.seq, self.rows = agent, gpus, 0, []

    def send(self, times_s, index, **columns):
        times_s = np.asarray(times_s, np.float64)
        columns = {name: np.broadcast_to(np.asarray(v, np.float32), len(times_s)) for name, v in columns.items()}
        self.seq += 1
        block = gpu_block(self.gpus, times_s, index, **columns)
        assert send(self.agent, batch(self.agent, self.seq, gpu=[block])).json()["dropped_rows"] == 0
        numbers = list(self.gpus.values())
        for n, (time_s, who) in enumerate(zip(times_s, index, strict=True)):
            values = {m.name: columns[m.name][n] if m.name in columns else np.float32(np.nan) for m in GPU}
            self.rows.append((datetime.fromtimestamp(time_s, UTC), numbers[who], values))

    def expected(self, width, until):
        """Buckets that begin before `until`, by (bucket, GPU)."""
        groups = {}
        for time, gpu, values in sorted(self.rows, key=lambda row: row[0]):
            bucket = rollups.floor(time, width)
            if bucket < until:
                groups.setdefault((bucket, gpu), []).append(values)
        return {key: self._combined(members) for key, members in groups.items()}

    def _combined(self, members):
        made = {"samples": len(members), "simulated": True}
        for metric in GPU:
            values = np.array([m[metric.name] for m in members], np.float64)
            values = values[~np.isnan(values)]
            none = not len(values)
            if metric.kind is Kind.GAUGE:
                made[f"{metric.name}_count"] = len(values)
                for part, function in (("sum", np.sum), ("min", np.min), ("max", np.max)):
                    made[f"{metric.name}_{part}"] = None if none else pytest.approx(function(values), rel=1e-6)
            elif metric.kind is Kind.FLAGS:
                made[metric.name] = None if none else int(np.bitwise_or.reduce(values.astype(int)))
            else:
                last = metric.kind is Kind.COUNTER
                made[metric.name] = None if none else pytest.approx(values[-1] if last else values.max(), rel=1e-6)
        return made

    def check(self):
        for name, width in LEVELS.items():
            assert table(name) == self.expected(width, rollups.rolled_until(name)), name


@pytest.fixture
def sent(agent, gpus):
    return Sent(agent, gpus)


def random_columns(chance, rows):
    columns = {}
    for metric in GPU:
        if metric.kind is Kind.FLAGS:
            values = chance.integers(0, 256, rows).astype(np.float32)
        elif metric.kind is Kind.CODE:
            values = chance.choice([0, 0, 0, 79, 31], rows).astype(np.float32)
        else:
            values = chance.uniform(0, 100, rows).round(2).astype(np.float32)
        values[chance.random(rows) < 0.2] = np.nan
        columns[metric.name] = values
    return columns


def test_new_late_and_again_give_what_numpy_gives(sent, now):
    """Batches of the last two days in any order, refreshes at any time in between."""
    chance = np.random.default_rng(3)
    end = now.timestamp()
    for seconds_ago in (30, 100, 47 * 3_600, 25 * 3_600, 90, 26 * 3_600, 4_000, 10):
        times = end - seconds_ago - np.sort(chance.uniform(0, 300, 40))
        sent.send(times, chance.integers(0, 2, 40), **random_columns(chance, 40))
        if chance.random() < 0.6:
            rollups.refresh(now)
            sent.check()
    for later in (MINUTE, HOUR, DAY):
        rollups.refresh(now + later)
        sent.check()
    assert len(table("gpu_minute")) >= 40
    assert not DirtyMinute.objects.exists()


def test_the_minute_that_runs_is_not_rolled_up(sent, now):
    rollups.refresh(now)
    closed = rollups.rolled_until()
    assert closed == rollups.floor(now - rollups.LAG, MINUTE)
    sent.send([closed.timestamp() - 1, closed.timestamp() + 1], [0, 0], power_w=300)
    rollups.refresh(now)
    assert [bucket for bucket, _ in table("gpu_minute")] == [closed - MINUTE]
    rollups.refresh(now + MINUTE)
    assert {bucket for bucket, _ in table("gpu_minute")} == {closed - MINUTE, closed}


def test_a_batch_that_commits_while_its_minute_is_rolled_up_is_made_good(sent, now):
    """Its mark is not among those that the refresh has seen, so the next one makes the minute anew."""
    rollups.refresh(now)
    at = rollups.rolled_until()
    sent.send([at.timestamp()], [0], power_w=100)
    rollups.refresh(now + MINUTE)
    sent.send([at.timestamp() + 30], [0], power_w=300)
    assert rollups.oldest_unrolled("gpu_sample") == at
    rollups.refresh(now + MINUTE)
    ((_, row),) = table("gpu_minute").items()
    assert (row["samples"], row["power_w_sum"]) == (2, 400)
    sent.check()


def test_late_rows_of_one_gpu_leave_the_others_minute_alone(sent, gpus, now):
    rollups.refresh(now)
    at = (rollups.rolled_until() - 5 * MINUTE).timestamp()
    sent.send([at, at + 1], [0, 1], temperature_c=[50, 60])
    rollups.refresh(now)
    sent.send([at + 2], [1], temperature_c=70)
    rollups.refresh(now)
    sent.check()


def test_a_second_refresh_changes_nothing(sent, now):
    sent.send([now.timestamp() - 120], [0], power_w=300)
    rollups.refresh(now)
    before = [table(name) for name in LEVELS]
    assert rollups.refresh(now) == 0
    Rollup.objects.update(rolled_until=now - 10 * MINUTE)
    rollups.refresh(now)
    assert [table(name) for name in LEVELS] == before


def test_many_workers_at_once_make_what_one_makes(sent, now):
    rollups.refresh(now - 2 * HOUR)
    chance = np.random.default_rng(11)
    for hours_ago in (1, 3):
        times = now.timestamp() - hours_ago * 3_600 + chance.uniform(0, 900, 60)
        sent.send(np.sort(times), chance.integers(0, 2, 60), **random_columns(chance, 60))
    failed = []

    def refresh():
        try:
            for _ in range(5):
                rollups.refresh(now)
        except Exception as error:  # noqa: BLE001 whatever it is, the test has to know
            failed.append(error)
        finally:
            connection.close()

    workers = [threading.Thread(target=refresh) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failed == []
    rollups.refresh(now)
    sent.check()
    assert not DirtyMinute.objects.exists()


def test_a_watermark_never_goes_back(now):
    rollups.refresh(now)
    before = rollups.rolled_until()
    rollups.refresh(now - HOUR)
    assert rollups.rolled_until() == before


def test_requests_by_minute_and_node(agent, enrolled, now):
    other = enrolled("node-2")
    at = rollups.floor(now, MINUTE) - 3 * MINUTE
    ago = (datetime.now(UTC) - at).total_seconds()
    rows = [
        inference(ago_s=ago - 1, total_us=1_000),
        inference(ago_s=ago - 2, total_us=500_000),
        inference(ago_s=ago - 3, total_us=500_001, status=503),
        inference(ago_s=ago - 4, total_us=7, version=2),
    ]
    send(agent, batch(agent, 1, *rows))
    send(other, batch(other, 1, inference(ago_s=ago - 5, total_us=9, model="other")))
    unrolled = timeseries.request_minutes(None, None, at, now)
    rollups.refresh(now)
    send(agent, batch(agent, 2, inference(ago_s=ago - 6, total_us=10, version=2)))
    rollups.refresh(now)
    found = timeseries.request_minutes("digits", [agent.node], at, now)
    assert [(row.time, row.version, *row[5:]) for row in found] == [
        (at, 1, 3, 1, 1, 1_001_001),
        (at, 2, 2, 0, 0, 17),
    ]
    assert {row[:5] for row in timeseries.request_minutes(None, None, at, now)} == {row[:5] for row in unrolled}
    assert [row.model for row in timeseries.request_minutes(None, [other.node], at, now)] == ["other"]
    assert timeseries.request_minutes("digits", None, at, now, team_ids=[]) == []


def test_nothing_is_dropped_that_is_not_rolled_up(sent, now, monkeypatch):
    """The refresh may be behind for days; then the rows that it still needs outlive their retention."""
    sent.send([now.timestamp() - 47 * 3_600], [0], power_w=300)
    monkeypatch.setattr(rollups, "ROUNDS", 0)
    services.keep_series(now=now + 3 * DAY)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM gpu_sample")
        assert cursor.fetchone() == (1,)
    monkeypatch.undo()
    services.keep_series(now=now + 3 * DAY)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM gpu_sample")
        assert cursor.fetchone() == (0,)
    ((_, row),) = table("gpu_minute").items()
    assert row["power_w_sum"] == 300


def test_rollups_have_retentions_of_their_own(sent, now, settings):
    """Each is dropped by whole partitions (chunks), the coarser the longer; days are kept for good."""
    sent.send([now.timestamp() - 120], [0], power_w=300)
    rollups.refresh(now + DAY)
    assert [len(table(name)) for name in LEVELS] == [1, 1, 1]
    Rollup.objects.update(rolled_until=now + 2_000 * DAY)
    for name in ("gpu_sample", "gpu_minute", "gpu_hour"):
        assert services.cutoffs(now + 300 * DAY)[name] < now + 300 * DAY
        store.drop_before(name, now - 2 * HOUR)
        assert len(table(name)) == 1
        assert len(store.drop_before(name, now + 300 * DAY)) >= 1
        assert table(name) == {}
    assert "gpu_day" not in services.cutoffs(now)
    assert len(table("gpu_day")) == 1


def test_partitions_say_by_their_name_when_they_end():
    names = {"gpu_minute_p20261231": (2027, 1, 1), "gpu_hour_p202612": (2027, 1, 1), "gpu_hour_p202601": (2026, 2, 1)}
    names["gpu_day_p2026"] = (2027, 1, 1)
    assert {name: store.part_end(name) for name in names} == {k: datetime(*v, tzinfo=UTC) for k, v in names.items()}
