"""Packed samples in: every good value lands in its column, everything else is dropped and counted."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from uuid import uuid4

import numpy as np
import pytest
from django.db import connection

from apps.observability.models import DirtyMinute
from protocol.metrics import ENGINE, GPU
from protocol.telemetry_pb2 import Column
from tests.observability.batches import DEPLOYMENT, batch, engine_block, give_gpus, gpu_block, send

NAN = float("nan")


@pytest.fixture
def agent(enrolled):
    return enrolled("node-1")


@pytest.fixture
def gpus(agent):
    return give_gpus(agent)


@pytest.fixture
def at():
    """Half a minute ago, in Unix seconds."""
    return math.floor(datetime.now(UTC).timestamp()) - 30


def rows(table, *columns):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1, 2, 3")
        return cursor.fetchall()


def test_every_metric_lands_in_its_column(agent, gpus, at):
    values = {metric.name: [float(n), n + 0.5] for n, metric in enumerate(GPU, start=1)}
    answer = send(agent, batch(agent, 1, gpu=[gpu_block(gpus, [at, at + 0.1], [0, 1], **values)]))
    assert (answer.status_code, answer.json()["dropped_rows"]) == (200, 0)
    first, second = rows("gpu_sample", "time", "gpu", "simulated", *values)
    assert first[:3] == (datetime.fromtimestamp(at, UTC), next(iter(gpus.values())), True)
    assert first[3:] == tuple(column[0] for column in values.values())
    assert (second[0].microsecond, second[1]) == (100_000, list(gpus.values())[1])
    whole = [
        int(column[1]) if metric.name in {"throttle_reasons", "xid"} else column[1]
        for metric, column in zip(GPU, values.values(), strict=True)
    ]
    assert second[3:] == tuple(whole)


def test_what_is_no_number_is_null_and_shifts_nothing(agent, gpus, at):
    block = gpu_block(
        gpus,
        [at, at + 1, at + 2, at + 3],
        [0, 1, 0, 1],
        temperature_c=[60, NAN, 62, math.inf],
        power_w=[NAN, 300, 301, 302],
        xid=[NAN, 79, -1, 1e12],
        fan_ratio=NAN,
    )
    assert send(agent, batch(agent, 1, gpu=[block])).json()["dropped_rows"] == 0
    assert rows("gpu_sample", "time", "temperature_c", "power_w", "xid", "fan_ratio", "sm_clock_hz") == [
        (datetime.fromtimestamp(at + n, UTC), *expected, None, None)
        for n, expected in enumerate([(60, None, None), (None, 300, 79), (62, 301, None), (None, 302, None)])
    ]


def test_blocks_of_a_batch_may_have_different_columns(agent, gpus, at):
    one = gpu_block(gpus, [at], power_w=300)
    other = gpu_block(gpus, [at + 1], simulated=False, temperature_c=60)
    send(agent, batch(agent, 1, gpu=[one, other]))
    assert [row[1:] for row in rows("gpu_sample", "time", "power_w", "temperature_c", "simulated")] == [
        (300, None, True),
        (None, 60, False),
    ]


def test_a_node_writes_for_its_own_gpus_only(agent, gpus, enrolled, at):
    theirs = give_gpus(enrolled("node-2"))
    names = [*gpus, *theirs, "GPU-nobody"]
    block = gpu_block(names, [at] * 5, range(5), power_w=[1, 2, 3, 4, 5])
    assert send(agent, batch(agent, 1, gpu=[block])).json()["dropped_rows"] == 3
    assert sorted(rows("gpu_sample", "power_w", "gpu", "time"))[-1][0] == 2


def test_times_outside_the_window_are_dropped_and_the_offset_applied(agent, gpus, at):
    times = [at - 3_600, at - 3_600 + 700 + 30, at - 60 * 3_600, 1e12]
    answer = send(agent, batch(agent, 1, gpu=[gpu_block(gpus, times, power_w=1)], clock_offset_s=3_600.0))
    assert answer.json()["dropped_rows"] == 3
    assert [time for time, *_ in rows("gpu_sample", "time", "gpu", "power_w")] == [datetime.fromtimestamp(at, UTC)]


def _short_times(block):
    block.time_unix_us = block.time_unix_us[:-8]


def _ragged_times(block):
    block.time_unix_us += b"x"


def _short_column(block):
    block.columns[0].values = block.columns[0].values[:-4]


def _ragged_column(block):
    block.columns[0].values += b"x"


def _many_gpus(block):
    block.gpus.extend(f"GPU-{n}" for n in range(64))


def _no_gpus(block):
    del block.gpus[:]


@pytest.mark.parametrize("spoil", [_short_times, _ragged_times, _short_column, _ragged_column, _many_gpus, _no_gpus])
def test_blocks_that_cannot_be_are_dropped_and_counted_and_the_rest_is_kept(agent, gpus, at, spoil):
    bad, good = (gpu_block(gpus, [at, at + 1, at + 2], power_w=power) for power in (1, 2))
    spoil(bad)
    answer = send(agent, batch(agent, 1, gpu=[bad, good]))
    assert (answer.status_code, answer.json()["dropped_rows"]) == (200, 3)
    assert {power for power, *_ in rows("gpu_sample", "power_w", "gpu", "time")} == {2}


def test_an_index_beyond_the_gpus_and_a_name_nobody_knows(agent, gpus, at):
    block = gpu_block(gpus, [at, at + 1], [0, 9], power_w=1, phase_of_the_moon=0.5)
    assert send(agent, batch(agent, 1, gpu=[block])).json()["dropped_rows"] == 1
    assert len(rows("gpu_sample", "time", "gpu", "power_w")) == 1


def test_engine_samples(agent, at):
    values = {metric.name: float(n) for n, metric in enumerate(ENGINE, start=1)}
    good = engine_block([DEPLOYMENT], [at, at + 1], **values)
    bad = engine_block(["none"], [at], queue_depth=1)
    assert send(agent, batch(agent, 1, engine=[good, bad])).json()["dropped_rows"] == 1
    stored = rows("engine_sample", "time", "node_id", "deployment_id", *values)
    assert len(stored) == 2
    assert (stored[0][1], str(stored[0][2]), stored[0][3:]) == (agent.node, DEPLOYMENT, tuple(values.values()))


def test_a_repeat_is_stored_once(agent, gpus, at):
    message = batch(agent, 1, gpu=[gpu_block(gpus, [at], power_w=1)])
    assert [send(agent, message).status_code for _ in range(3)] == [200] * 3
    assert len(rows("gpu_sample", "time", "gpu", "power_w")) == 1
    assert DirtyMinute.objects.count() == 1


def test_minutes_are_marked_with_their_gpus(agent, gpus, at):
    noon = at // 60 * 60 - 120
    send(agent, batch(agent, 1, gpu=[gpu_block(gpus, [noon, noon + 59, noon + 60], [0, 1, 1], power_w=1)]))
    first, second = gpus.values()
    marked = DirtyMinute.objects.order_by("minute").values_list("minute", "gpus")
    assert list(marked) == [
        (datetime.fromtimestamp(noon, UTC), [first, second]),
        (datetime.fromtimestamp(noon + 60, UTC), [second]),
    ]


def test_too_many_samples_are_refused(agent, gpus, at):
    answer = send(agent, batch(agent, 1, gpu=[gpu_block(gpus, np.full(10_001, at), power_w=1)]))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_many_samples")
    whole = [gpu_block(gpus, np.full(5_000, at), power_w=1) for _ in range(2)]
    assert send(agent, batch(agent, 1, gpu=whole)).status_code == 200


def test_columns_without_end_are_refused_unparsed(agent, gpus, at):
    block = gpu_block(gpus, [at])
    block.columns.extend(Column() for _ in range(201))
    answer = send(agent, batch(agent, 1, gpu=[block]))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_many_columns")
    many_names = gpu_block([str(uuid4()) for _ in range(201)], [at])
    assert send(agent, batch(agent, 1, gpu=[many_names])).json()["code"] == "too_many_columns"
