"""The detector at work: groups, replays, restarts, and what others are told."""

from __future__ import annotations

import threading
from datetime import timedelta

import numpy as np
import pytest
from django.db import connection, transaction

from apps.fleet.models import Gpu, Node
from apps.observability import detection, detector, detector_store, samples
from apps.observability.detector import DAY, Kind
from apps.observability.models import DetectorGroup, DetectorOutput, DetectorState, Rebaseline
from tests.observability.minutes import HISTORY, TODAY, add_gpus, at, put
from tests.observability.series import temperatures, warm

METRICS = len(detection.METRICS)
OTHERS = METRICS - 1  # groups of which nothing is known: they judge but the newest minute


@pytest.fixture
def minutes(db, monkeypatch):
    """The store: `minutes.close(n)` says that the Unix minutes before n are closed."""

    class Minutes:
        closed = TODAY

        def close(self, minute):
            self.closed = minute

        def detect(self, minute):
            """What a tick does when the minutes before this one are closed."""
            self.close(minute)
            return detection.detect(at(minute))

    known = Minutes()
    monkeypatch.setattr(samples, "rolled_until", lambda: at(known.closed))
    return known


@pytest.fixture
def gpus(minutes, enrolled):
    """Three GPUs with two days of temperatures."""
    numbers = add_gpus(Node.objects.get(pk=enrolled("node-1").node), 3)
    put(numbers, temperatures(2, 3, first=HISTORY), HISTORY)
    return numbers


def today(count, series=3):
    """The first values of today."""
    return temperatures(1, series, seed=5, first=TODAY)[:count]


def temperature_group():
    return DetectorGroup.objects.get(metric="temperature_c")


def everything():
    """All that the detector has stored of temperatures, to the byte."""
    group = temperature_group()
    states = DetectorState.objects.filter(group=group).order_by("phase").values_list("phase", "vector")
    outputs = DetectorOutput.objects.filter(group=group).order_by("minute").values_list("minute", "scores")
    return [[(key, bytes(value)) for key, value in rows] for rows in (states, outputs)]


def test_a_hot_gpu_is_found_among_its_peers(minutes, gpus):
    values = today(3)
    values[2, 1] += 19.0
    put(gpus, values, TODAY)
    minutes.detect(TODAY + 2)
    assert detection.findings(at(TODAY + 2)).rows == []
    minutes.detect(TODAY + 3)
    found = detection.findings(at(TODAY + 3))
    (row,) = found.rows
    assert (row.gpu, row.metric, row.minute, row.kind) == (gpus[1], "temperature_c", at(TODAY + 2), Kind.SPIKE)
    assert row.observed == pytest.approx(values[2, 1], abs=1e-3)
    assert row.observed - row.expected == pytest.approx(19.0, abs=4.0)
    assert row.z == pytest.approx((row.observed - row.expected) / row.scale, rel=1e-5)
    assert row.z > 10
    assert (found.minute, found.learning, found.silent) == (at(TODAY + 2), set(), set())


def test_a_gpu_known_for_a_day_is_still_learned(minutes, gpus, enrolled):
    (young,) = add_gpus(Node.objects.get(pk=enrolled("node-2").node), 1)
    put([young], temperatures(1, first=HISTORY + DAY), HISTORY + DAY)
    put([*gpus, young], today(1, 4) + 30.0, TODAY)
    minutes.detect(TODAY + 1)
    found = detection.findings(at(TODAY + 1))
    assert {row.gpu for row in found.rows} == set(gpus)
    assert (found.learning, found.silent) == ({young}, set())
    assert detection.last_minutes(young, "temperature_c", at(HISTORY)) == []
    assert detection.last_minutes(gpus[0], "power_w", at(HISTORY)) == []
    assert detection.last_minutes(4_000_000, "power_w", at(HISTORY)) == []


def test_a_gpu_that_joins_keeps_the_others_places_and_learns_when_it_can(minutes, gpus, enrolled):
    put(gpus, today(3), TODAY)
    minutes.detect(TODAY + 1)
    level = detector_store.load(temperature_group(), set(), 0.5).level
    (new,) = add_gpus(Node.objects.get(pk=enrolled("node-2").node), 1)
    minutes.detect(TODAY + 2)
    group = temperature_group()
    assert group.gpus == [*gpus, new]
    state = detector_store.load(group, set(), 0.5)
    assert list(state.learning) == [False, False, False, True]
    assert state.level[:3] == pytest.approx(level, abs=0.01)
    put([new], temperatures(2, 1, seed=3, first=TODAY - 2 * DAY + 2), TODAY - 2 * DAY + 2)
    minutes.detect(TODAY + 3)
    assert not detector_store.load(group, set(), 0.5).learning.any()
    assert detection.findings(at(TODAY + 3)).learning == set()


def test_one_long_replay_equals_many_ticks_to_the_byte(minutes, gpus, monkeypatch):
    values = today(90)
    values[[7, 20], 0] = np.nan
    values[30:, 2] += 19.0
    put(gpus, values, TODAY)
    with transaction.atomic():
        for minute in range(90):
            minutes.detect(TODAY + minute + 1)
        ticks = everything()
        transaction.set_rollback(True)
    minutes.detect(TODAY + 1)
    assert minutes.detect(TODAY + 90) == 89 + OTHERS
    assert everything() == ticks
    assert [minute for minute, _ in ticks[1]] == [TODAY + n for n in range(90)]


def test_what_is_stored_is_the_state_itself(minutes, gpus):
    """Every restart reads what the tick before wrote: as if it had stayed in memory."""
    values = today(5)
    put(gpus, values, TODAY)
    memory = warm(temperatures(2, 3, first=HISTORY), first=HISTORY)
    for index, row in enumerate(values):
        scores = detector.step(memory, TODAY + index, row)
        minutes.detect(TODAY + index + 1)
        stored = DetectorOutput.objects.get(group=temperature_group(), minute=TODAY + index)
        assert bytes(stored.scores) == detector_store.pack(scores)
    state = detector_store.load(temperature_group(), detector_store.ALL_PHASES, 0.5)
    for name in ("season", "week", *detector.VECTORS):
        assert getattr(state, name).tobytes() == getattr(memory, name).tobytes(), name


def test_work_is_bounded_and_goes_on_where_it_stopped(minutes, gpus, monkeypatch):
    monkeypatch.setattr(detection, "REPLAY_MINUTES", 10)
    put(gpus, today(26), TODAY)
    minutes.detect(TODAY + 1)
    done = []
    while more := minutes.detect(TODAY + 26):
        done.append(more)
    assert done == [10 + OTHERS, 10, 5]
    monkeypatch.setattr(detection, "BUDGET_S", 0.0)
    assert [minutes.detect(TODAY + 27) for _ in range(METRICS + 1)] == [1] * METRICS + [0]


def test_a_tick_without_a_new_minute_does_nothing(minutes, gpus, django_assert_num_queries):
    put(gpus, today(1), TODAY)
    assert minutes.detect(TODAY + 1) == METRICS
    with django_assert_num_queries(3):
        assert minutes.detect(TODAY + 1) == 0
    assert minutes.detect(TODAY - 5) == 0  # a watermark that went back


def test_minutes_too_far_back_are_left_out(minutes, gpus, monkeypatch):
    put(gpus, today(60), TODAY)
    minutes.detect(TODAY + 1)
    monkeypatch.setattr(detection, "REPLAY_LIMIT", 10)
    minutes.detect(TODAY + 60)
    judged = DetectorOutput.objects.filter(group=temperature_group()).values_list("minute", flat=True)
    assert sorted(judged) == [TODAY, *range(TODAY + 49, TODAY + 60)]


def test_a_group_that_knows_nobody_has_nothing_to_replay(minutes, enrolled):
    numbers = add_gpus(Node.objects.get(pk=enrolled("node-1").node), 3)
    minutes.detect(TODAY - 3 * DAY)
    put(numbers, temperatures(2, 3, first=HISTORY), HISTORY)
    put(numbers, today(2), TODAY)
    assert minutes.detect(TODAY + 1) == METRICS
    judged = DetectorOutput.objects.filter(group=temperature_group()).values_list("minute", flat=True)
    assert list(judged) == [TODAY]
    assert detection.findings(at(TODAY + 1)).learning == set()  # it learned from its history on the way


def test_before_the_first_rollup_nothing_begins(minutes, gpus):
    assert minutes.detect(0) == 0
    assert not DetectorGroup.objects.exists()


def test_groups_are_full_at_their_size(minutes, gpus, enrolled, monkeypatch):
    monkeypatch.setattr(detection, "GROUP_SIZE", 2)
    values = today(2)
    values[:, 2] += 19.0
    put(gpus, values, TODAY)
    minutes.detect(TODAY + 1)
    more = add_gpus(Node.objects.get(pk=enrolled("node-2").node), 3)
    minutes.detect(TODAY + 2)
    groups = DetectorGroup.objects.filter(metric="temperature_c").order_by("number")
    assert [group.gpus for group in groups] == [gpus[:2], [gpus[2], more[0]], more[1:]]
    found = detection.findings(at(TODAY + 2))
    assert [row.gpu for row in found.rows] == [gpus[2]]
    assert found.learning == set(more)


def test_two_workers_judge_every_minute_once(transactional_db, minutes, gpus):
    put(gpus, today(30), TODAY)
    minutes.detect(TODAY + 1)
    minutes.close(TODAY + 30)
    start, judged, errors = threading.Barrier(2), [], []

    def work():
        try:
            start.wait()
            judged.append(detection.detect(at(TODAY + 30)))
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (errors, sum(judged)) == ([], 29 + OTHERS)
    assert DetectorOutput.objects.filter(group=temperature_group()).count() == 30


def test_an_error_halfway_leaves_nothing_behind(minutes, gpus, monkeypatch):
    put(gpus, today(2), TODAY)
    minutes.detect(TODAY + 1)
    before = everything()

    def broken(*_):
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(detector_store, "save", broken)
        with pytest.raises(RuntimeError):
            minutes.detect(TODAY + 2)
    assert everything() == before
    assert minutes.detect(TODAY + 2) == METRICS


def test_missing_values_are_silent_and_the_band_goes_on(minutes, gpus):
    values = today(4)
    values[2:, 0] = np.nan
    put(gpus, values, TODAY)
    minutes.detect(TODAY + 1)
    minutes.detect(TODAY + 4)
    found = detection.findings(at(TODAY + 4))
    assert (found.silent, found.learning) == ({gpus[0]}, set())
    assert found.rows == []
    band = detection.last_minutes(gpus[0], "temperature_c", at(TODAY))
    assert [point.time for point in band] == [at(TODAY + n) for n in range(6)]
    assert [point.observed for point in band] == [
        pytest.approx(values[0, 0], abs=1e-3),
        pytest.approx(values[1, 0], abs=1e-3),
        *[None] * 4,
    ]
    assert [point.kind for point in band] == [Kind.NONE] * 2 + [Kind.NO_DATA] * 2 + [Kind.NONE] * 2


def test_the_band_is_where_z_stays_within_the_threshold_and_reaches_to_the_present(minutes, gpus):
    put(gpus, today(5), TODAY)
    minutes.detect(TODAY + 1)
    minutes.detect(TODAY + 3)
    ahead = detection.last_minutes(gpus[2], "temperature_c", at(TODAY + 2))[-2:]
    minutes.detect(TODAY + 5)
    band = detection.last_minutes(gpus[2], "temperature_c", at(TODAY + 1))
    assert [point.time for point in band] == [at(TODAY + n) for n in range(1, 7)]
    for point in band[:4]:
        half = (point.high - point.low) / 2
        assert point.observed - point.expected == pytest.approx(point.z * half / detector.THRESHOLD, abs=1e-4)
        assert point.low < point.observed < point.high
    for guess, judged in zip(ahead, band[2:4], strict=True):
        assert guess.time == judged.time
        assert guess.expected == pytest.approx(judged.expected, abs=0.05)
        assert (guess.z, guess.observed) == (None, None)


def test_the_band_reaches_back_over_what_it_was_learned_from(minutes, gpus):
    put(gpus, today(2), TODAY)
    minutes.detect(TODAY + 1)
    minutes.detect(TODAY + 2)
    band = detection.last_minutes(gpus[2], "temperature_c", at(TODAY - 60))
    assert [point.time for point in band] == [at(TODAY + n) for n in range(-60, 4)]
    learned, judged = band[:60], band[60:62]
    assert {(point.z, point.observed) for point in learned} == {(None, None)}
    assert None not in {point.observed for point in judged}
    for point in learned:
        assert point.low < point.expected < point.high
        assert point.expected == pytest.approx(judged[0].expected, abs=2.0)  # an hour of a slow day


def test_the_band_of_one_gpu_among_thousands(minutes, gpus, enrolled):
    """Its bytes are cut out by the database, at the right place and also where the rest lies out of line."""
    many = add_gpus(Node.objects.get(pk=enrolled("node-2").node), 0)
    assert many == []
    group = DetectorGroup.objects.create(
        metric="temperature_c", number=0, gpus=[*range(10_000, 13_000), *gpus], watermark=TODAY
    )
    size = len(group.gpus)
    scores = detector.Scores.empty(size)
    scores.expected[:], scores.scale[:], scores.z[:] = np.arange(size), 2.0, 1.0
    DetectorOutput.objects.create(group=group, minute=TODAY, scores=detector_store.pack(scores))
    state = detector.State.empty(size, 0.5)
    state.level[:], state.scale[:] = np.arange(size), 3.0
    detector_store.save(group, state, [])
    closed, *ahead = detection.last_minutes(gpus[1], "temperature_c", at(TODAY))
    assert closed == (at(TODAY), 3_001.0, 2_993.0, 3_009.0, 1.0, Kind.NONE, 3_003.0)
    assert [(point.expected, point.low) for point in ahead] == [(3_001.0, 2_989.0)] * 2


def test_a_new_level_is_on_record(minutes, gpus):
    put(gpus, today(2), TODAY)
    minutes.detect(TODAY + 1)
    group = temperature_group()
    state = detector_store.load(group, set(), 0.5)
    state.drift[1], state.standing[1], state.offset[1] = 2.9, detector.STANDING - 1, 12.0
    before = float(state.level[1])
    detector_store.save(group, state, [])
    minutes.detect(TODAY + 2)
    (record,) = Rebaseline.objects.all()
    assert (record.gpu, record.metric, record.at) == (gpus[1], "temperature_c", at(TODAY + 1))
    assert record.level_before == pytest.approx(before, abs=0.01)
    assert record.level_after - record.level_before == pytest.approx(12.0, abs=0.1)
    (row,) = detection.findings(at(TODAY + 2)).rows
    assert (row.gpu, row.kind) == (gpus[1], Kind.LEVEL_SHIFT)


def test_the_weekly_season_is_learned_once_there_are_two_weeks(minutes, gpus):
    put(gpus[:1], temperatures(13, 1, first=TODAY - 15 * DAY), TODAY - 15 * DAY)
    put(gpus, today(1), TODAY)
    minutes.detect(TODAY + 1)
    group = temperature_group()
    state = detector_store.load(group, set(), 0.5)
    assert [days >= detector.WEEKLY_DAYS for days in state.days] == [True, False, False]
    state.days[0] = 2.0  # as if it had been learned when it was young
    detector_store.save(group, state, [])
    minutes.detect(TODAY + 60)
    assert detector_store.load(group, set(), 0.5).days[0] == 2.0
    minutes.detect(TODAY + 61)
    assert detector_store.load(group, set(), 0.5).days[0] >= detector.WEEKLY_DAYS


def test_old_judgments_are_forgotten(minutes, gpus, settings):
    settings.FARRIER = settings.FARRIER.model_copy(update={"raw_retention_h": 1})
    put(gpus, today(70), TODAY)
    minutes.detect(TODAY + 1)
    minutes.detect(TODAY + 70)
    judged = DetectorOutput.objects.filter(group=temperature_group()).values_list("minute", flat=True)
    assert sorted(judged) == list(range(TODAY + 9, TODAY + 70))


def test_a_gpu_that_is_gone_is_not_missed(minutes, gpus):
    values = today(1)
    values[0, 0] = np.nan
    put(gpus, values, TODAY)
    minutes.detect(TODAY + 1)
    assert detection.findings(at(TODAY + 1)).silent == {gpus[0]}
    Gpu.objects.filter(number=gpus[0]).delete()
    found = detection.findings(at(TODAY + 1))
    assert (found.rows, found.silent, found.learning) == ([], set(), set())


def test_judgments_that_are_too_old_say_nothing_but_silence(minutes, gpus):
    values = today(1)
    values[0, 1] += 19.0
    put(gpus, values, TODAY)
    minutes.detect(TODAY + 1)
    assert len(detection.findings(at(TODAY + 1)).rows) == 1
    late = detection.findings(at(TODAY + 1) + detection.STALE)
    assert (late.rows, late.silent, late.minute) == ([], set(gpus), at(TODAY))


def test_without_gpus_there_is_nothing(minutes):
    assert minutes.detect(TODAY) == 0
    assert detection.findings(at(TODAY)) == detection.Findings(None, [], set(), set())


def test_unix_minutes_and_moments_are_the_same():
    moment = at(TODAY) + timedelta(seconds=59.9)
    assert detection.moment_of(detection.unix_minute(moment)) == at(TODAY)
