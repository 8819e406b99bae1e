"""What charts, detectors and alerts read: the same points whichever table they come from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from apps.observability import rollups, samples, store
from apps.observability.models import Rollup
from tests.observability.batches import batch, give_gpus, gpu_block, send

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def agent(enrolled):
    return enrolled("node-1")


@pytest.fixture
def gpus(agent):
    return give_gpus(agent)


@pytest.fixture
def first(gpus):
    return next(iter(gpus.values()))


@pytest.fixture
def noon(now):
    """A full hour, at least an hour ago."""
    return rollups.floor(now, HOUR) - HOUR


def put(agent, gpus, seq, times, index=None, **columns):
    times_s = [time.timestamp() for time in times]
    assert send(agent, batch(agent, seq, gpu=[gpu_block(gpus, times_s, index, **columns)])).json()["dropped_rows"] == 0


def points(series):
    return [(datetime.fromtimestamp(t, UTC), *row) for t, *row in zip(*series[1:], strict=True)]


def test_raw_points_have_mean_lowest_and_highest(agent, gpus, first, noon):
    put(agent, gpus, 1, [noon + n * timedelta(seconds=1) for n in range(4)], temperature_c=[60, 64, 70, np.nan])
    (series,) = samples.gpu_points("temperature_c", [first], noon, noon + MINUTE, step=timedelta(seconds=2))
    assert points(series) == [(noon, 62, 60, 64), (noon + timedelta(seconds=2), 70, 70, 70)]
    assert (series.gpu, series.times.dtype, series.mean.dtype) == (first, np.float64, np.float32)


def test_minutes_are_the_same_before_and_after_they_are_rolled_up(agent, gpus, noon, now):
    times = [noon + n * timedelta(seconds=20) for n in range(12)]
    put(agent, gpus, 1, times, [0, 1] * 6, power_w=np.arange(12) * 100)
    span = (list(gpus.values()), noon, now)
    before = samples.gpu_points("power_w", *span, step=MINUTE)
    rollups.refresh(noon + 2 * MINUTE + rollups.LAG)  # the first two minutes alone
    between = samples.gpu_points("power_w", *span, step=MINUTE)
    rollups.refresh(now)
    after = samples.gpu_points("power_w", *span, step=MINUTE)
    assert [points(series) for series in before] == [points(series) for series in between]
    assert [points(series) for series in before] == [points(series) for series in after]
    assert points(before[0])[0] == (noon, 100, 0, 200)
    assert [len(series.times) for series in samples.gpu_points("power_w", *span, step=HOUR)] == [1, 1]


@pytest.mark.parametrize("step", [HOUR, 2 * HOUR, DAY])
def test_coarse_points_weigh_every_sample_alike(agent, gpus, first, noon, now, step):
    """An hour of one sample and an hour of three: the mean is over four samples, not over two means."""
    start = rollups.floor(noon, step)
    put(agent, gpus, 1, [start, start + MINUTE, start + 2 * MINUTE], power_w=100)
    put(agent, gpus, 2, [start + 30 * MINUTE], power_w=500)
    for later in (timedelta(0), DAY):
        rollups.refresh(now + later)
        (series,) = samples.gpu_points("power_w", [first], start + 10 * MINUTE, now, step=step)
        assert points(series)[0] == (start, 200, 100, 500)


def test_steps_are_what_people_count_in_and_points_are_bounded(agent, gpus, noon, now):
    put(agent, gpus, 1, [noon + n * timedelta(seconds=1) for n in range(0, 3_000, 3)], power_w=1)
    rollups.refresh(now)
    numbers = list(gpus.values())
    for span, gpus_asked, step_s in (
        (5 * MINUTE, 1, 1),
        (HOUR, 1, 10),
        (HOUR, 50, 60),
        (DAY, 1, 300),
        (7 * DAY, 1, 1_800),
    ):
        series, *_ = samples.gpu_points("power_w", numbers[:1] * gpus_asked, noon, noon + span)
        gaps = np.diff(series.times)
        assert len(series.times) <= 600
        assert not len(gaps) or set(gaps % step_s) == {0}
        assert not len(gaps) or gaps.min() == (3 if step_s == 1 else step_s)


def test_counters_flags_and_codes(agent, gpus, first, noon, now):
    times = [noon, noon + MINUTE / 2, noon + MINUTE]
    put(agent, gpus, 1, times, ecc_corrected_total=[7, 2, np.nan], throttle_reasons=[4, 8, 1], xid=[79, 0, 0])
    expected = {"ecc_corrected_total": [2], "throttle_reasons": [12, 1], "xid": [79, 0]}
    for _ in range(2):
        for metric, values in expected.items():
            (series,) = samples.gpu_points(metric, [first], noon, now, step=MINUTE)
            assert series.mean.tolist() == series.low.tolist() == series.high.tolist() == values
        rollups.refresh(now)
    (series,) = samples.gpu_points("throttle_reasons", [first], noon, now, step=HOUR)
    assert series.mean.tolist() == [13]


def test_an_unknown_metric_and_no_gpu(noon, now):
    with pytest.raises(KeyError):
        samples.gpu_points("time; DROP TABLE gpu_sample", [1], noon, now)
    assert samples.gpu_points("power_w", [], noon, now) == []
    assert len(samples.gpu_points("power_w", [1], now, noon)[0].times) == 0


def test_old_points_come_from_what_is_still_kept(gpus, first, now, settings):
    """Of a week ago there are no samples and, with a short retention, no minutes: hours answer instead."""
    settings.FARRIER = settings.FARRIER.model_copy(update={"minute_retention_d": 2})
    end = rollups.floor(now, HOUR)
    times = np.arange(end.timestamp() - 7 * 86_400, end.timestamp(), 60)
    samples.copy_history(first, {"power_w": np.full(len(times), 250.0)}, times, simulated=True)
    Rollup.objects.update_or_create(series="gpu_minute", defaults={"rolled_until": end})
    Rollup.objects.update_or_create(series="gpu_hour", defaults={"rolled_until": end})
    (series,) = samples.gpu_points("power_w", [first], end - 4 * DAY, end, step=MINUTE)
    gaps = np.diff(series.times)
    assert set(gaps) == {60, 3_600}
    assert (series.times[0], series.mean.min()) == ((end - 4 * DAY).timestamp(), 250)


def test_history_goes_into_every_rollup_and_twice_is_once(gpus, first, now):
    end = rollups.floor(now, HOUR)
    times = np.arange(end.timestamp() - 2 * 86_400, end.timestamp(), 60)
    values = 60 + 3 * np.sin(times / 86_400 * 2 * np.pi)
    values[5] = np.nan
    columns = {"temperature_c": values, "throttle_reasons": np.zeros(len(times)), "ecc_corrected_total": times * 0 + 3}
    for _ in range(2):
        samples.copy_history(first, columns, times.astype("datetime64[s]"), simulated=True)
        Rollup.objects.update_or_create(series="gpu_minute", defaults={"rolled_until": end})
        matrix = samples.minute_matrix("temperature_c", [first], int(times[0]) // 60, int(times[-1]) // 60)
        assert np.array_equal(matrix[:, 0], values.astype(np.float32), equal_nan=True)
        for level in rollups.LEVELS[1:]:
            Rollup.objects.update_or_create(series=level.target, defaults={"rolled_until": end})
            (series,) = samples.gpu_points("temperature_c", [first], end - DAY, end, step=level.width)
            for start, mean in zip(series.times, series.mean, strict=True):
                inside = (times >= start) & (times < start + level.width.total_seconds())
                assert mean == pytest.approx(np.nanmean(values[inside]), rel=1e-5)


def test_history_may_be_replaced_when_it_is_in_columns_already(gpus, first, now):
    """TimescaleDB turns old chunks into columns; on plain partitions there is nothing to turn."""
    times = np.arange(now.timestamp() - 9 * 86_400, now.timestamp() - 5 * 86_400, 60) // 60 * 60
    for watts in (200, 300):
        samples.copy_history(first, {"power_w": np.full(len(times), watts)}, times, simulated=True)
        for level in rollups.LEVELS:
            store.to_columns(level.target, now)
    Rollup.objects.update_or_create(series="gpu_minute", defaults={"rolled_until": now})
    matrix = samples.minute_matrix("power_w", [first], int(times[0]) // 60, int(times[-1]) // 60)
    assert set(matrix.ravel()) == {300}


def test_history_stays_when_live_minutes_follow(agent, gpus, first, now):
    start = rollups.floor(now, MINUTE) - 10 * MINUTE
    past = np.arange(start.timestamp() - 3_600 * 3, start.timestamp(), 60)
    samples.copy_history(first, {"power_w": np.full(len(past), 100)}, past, simulated=True)
    rollups.refresh(start)
    put(agent, gpus, 1, [start + n * MINUTE for n in range(9)], power_w=300)
    rollups.refresh(now + HOUR)
    low, high = int(past[0]) // 60, int(start.timestamp()) // 60 + 8
    assert np.nansum(samples.minute_matrix("power_w", [first], low, high)) == 100 * 180 + 300 * 9
    (series,) = samples.gpu_points("power_w", [first], start - 4 * HOUR, now, step=HOUR)
    assert series.low.min() == 100


def test_the_matrix_has_a_column_a_gpu_in_the_order_asked(agent, gpus, noon, now):
    one, two = gpus.values()
    put(agent, gpus, 1, [noon, noon + MINUTE, noon + MINUTE], [0, 0, 1], power_w=[1, 2, 3], xid=[0, 79, 0])
    minute = int(noon.timestamp()) // 60
    assert np.isnan(samples.minute_matrix("power_w", [one], minute, minute)).all()  # nothing is closed yet
    rollups.refresh(now)
    nan = np.nan
    matrix = samples.minute_matrix("power_w", [two, 999, one], minute, minute + 2)
    assert np.array_equal(matrix, np.array([[nan, nan, 1], [3, nan, 2], [nan] * 3], np.float32), equal_nan=True)
    assert samples.minute_matrix("xid", [one], minute, minute + 1).tolist() == [[0], [79]]
    assert samples.minute_matrix("power_w", [one], minute + 1, minute).shape == (0, 1)
    assert samples.minute_matrix("power_w", [], minute, minute + 1).shape == (2, 0)


@pytest.mark.parametrize("few", [True, False])
def test_the_newest_values(agent, gpus, now, monkeypatch, few):
    if not few:
        monkeypatch.setattr(samples, "PROBED_GPUS", 0)
    one, two = gpus.values()
    at = rollups.floor(now, MINUTE) - MINUTE
    put(agent, gpus, 1, [at, at + timedelta(seconds=1)], [0, 0], power_w=[300, 302], temperature_c=[np.nan, np.nan])
    put(agent, gpus, 2, [at - HOUR], [1], power_w=1)
    rollups.refresh(now + timedelta(seconds=30))
    found = samples.latest([one, two, 999])
    assert set(found) == {one}
    assert (found[one].values["power_w"], found[one].simulated) == (302 if few else 301, True)
    assert np.isnan(found[one].values["temperature_c"])
    assert found[one].time == at + timedelta(seconds=1 if few else 0)
    assert samples.latest([]) == {}


def test_who_was_heard(agent, gpus, now):
    one, two = gpus.values()
    put(agent, gpus, 1, [now - MINUTE, now - HOUR], [0, 1], power_w=1)
    assert samples.gpus_heard(now - 2 * MINUTE) == {one}
    assert samples.gpus_heard(now - 2 * HOUR) == {one, two}


def test_nothing_is_rolled_up_at_first(gpus, first):
    assert samples.rolled_until() == datetime(1970, 1, 1, tzinfo=UTC)
    assert samples.latest([first]) == {}
