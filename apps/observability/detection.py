"""What is unusual in the fleet: judge every closed minute of every GPU, and tell others what was found.

Workers hold no state. A tick takes one group after the other by its row's lock, replays the minutes that came since its
watermark in order, and writes state, scores and watermark in one transaction: killed anywhere, it has happened or not.
A late row that changes a minute already judged changes no judgment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isnan, nan
from typing import NamedTuple

import numpy as np
from django.conf import settings
from django.db import connection, transaction
from django.db.models import F
from numpy.typing import NDArray

from apps.fleet.models import Gpu
from apps.observability import detector, detector_store, samples
from apps.observability.decompose import DAY
from apps.observability.detector import THRESHOLD, Kind
from apps.observability.models import DetectorGroup, DetectorOutput, DetectorState, Rebaseline

# What is judged, and the least standard deviation that means anything (sensors count in whole degrees).
METRICS = {"temperature_c": 0.5, "memory_temperature_c": 0.5, "power_w": 5.0, "utilization_ratio": 0.02}
GROUP_SIZE = 4_096
REPLAY_MINUTES = 240  # a transaction
REPLAY_LIMIT = 7 * DAY  # minutes: what lies further back is left out
HISTORY_DAYS = detector.WEEKLY_DAYS + 1  # an hour may be missing at its begin
HISTORY_GPUS = 128  # at a time, for memory
WARM_UP_GPUS = 256  # a group and tick
PROBE_MINUTES = 10
STEADY = 1.0  # sigmas of drift: a series that is off just now doesn't get its weekly season now
BUDGET_S = 5.0  # a tick begins no further group after so long
_JOIN_LOCK = 0x6661_7264_6574

STALE = timedelta(minutes=15)  # a judgment older than this is none
AHEAD_MINUTES = 2  # the minute that is just being closed, and the one that runs
LEARNED_SHOWN = 7 * DAY  # minutes before the first judged one that a chart's band reaches back
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Indices = NDArray[np.intp]


class Finding(NamedTuple):
    """An unusual value of a GPU (its number) in a closed minute, in the metric's unit."""

    gpu: int
    metric: str
    minute: datetime
    observed: float
    expected: float
    scale: float
    z: float
    kind: Kind


@dataclass(frozen=True)
class Findings:
    """The newest judgment. `minute` is the newest judged one, None before the first.

    `learning`: GPUs of which no metric is known yet. `silent`: known ones of which no known metric had a value, or that
    nobody has judged for a quarter of an hour.
    """

    minute: datetime | None
    rows: list[Finding]
    learning: set[int]
    silent: set[int]


class BandPoint(NamedTuple):
    """What was expected of one GPU in one minute: the band is where |z| stays within the threshold.

    `observed` and `z` are None without a value, and in minutes that aren't closed yet.
    """

    time: datetime
    expected: float
    low: float
    high: float
    z: float | None
    kind: Kind
    observed: float | None


def unix_minute(moment: datetime) -> int:
    """The Unix minute that a moment lies in."""
    return (moment - EPOCH) // timedelta(minutes=1)


def moment_of(minute: int) -> datetime:
    """Where a Unix minute begins."""
    return EPOCH + timedelta(minutes=minute)


def detect(now: datetime) -> int:
    """Judge what has closed since the last time; return how many minutes, summed over groups.

    What a tick has no time for, the next one does.
    """
    closed = unix_minute(min(samples.rolled_until(), now)) - 1
    if closed < 0:
        return 0  # nothing was ever rolled up
    groups = DetectorGroup.objects.filter(metric__in=METRICS)
    if not groups.exists() or groups.filter(watermark__lt=closed).exists():  # once a minute
        join_groups(closed)
    deadline = time.monotonic() + BUDGET_S
    judged = 0
    for pk in list(groups.filter(watermark__lt=closed).order_by("watermark", "pk").values_list("pk", flat=True)):
        judged += _advance(pk, closed)
        if time.monotonic() > deadline:
            break
    return judged


def join_groups(closed: int) -> int:
    """Give every GPU that has none a place in a group of each metric; return how many were given.

    A new group begins with the Unix minute `closed`.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_JOIN_LOCK])
            if not cursor.fetchone()[0]:
                return 0  # another worker is at it
        numbers = set(Gpu.objects.values_list("number", flat=True))
        return sum(_join(metric, numbers, closed) for metric in METRICS)


def _join(metric: str, numbers: set[int], closed: int) -> int:
    groups = list(DetectorGroup.objects.filter(metric=metric).order_by("number"))
    new = sorted(numbers.difference(*(group.gpus for group in groups)))
    left = list(new)
    if left and groups and len(groups[-1].gpus) < GROUP_SIZE:
        # its detector may be at work: the lock waits for the end of that transaction
        last = DetectorGroup.objects.select_for_update().get(pk=groups[-1].pk)
        room = GROUP_SIZE - len(last.gpus)
        last.gpus, left = last.gpus + left[:room], left[room:]
        last.save(update_fields=["gpus"])
    DetectorGroup.objects.bulk_create(
        DetectorGroup(
            metric=metric, number=len(groups) + place, gpus=left[begin : begin + GROUP_SIZE], watermark=closed - 1
        )
        for place, begin in enumerate(range(0, len(left), GROUP_SIZE))
    )
    return len(new)


@transaction.atomic
def _advance(pk: int, closed: int) -> int:
    """Bring one group forward; return by how many minutes. 0: another worker has it, or has done it."""
    found = DetectorGroup.objects.select_for_update(skip_locked=True).filter(pk=pk, watermark__lt=closed)
    group = found.first()
    if group is None:
        return 0
    minutes = _due(group, closed)
    phases = detector_store.phases_of(minutes)
    state = detector_store.load(group, phases, METRICS[group.metric])
    ready = _ready(group, state, minutes)
    if ready.size:
        phases = set(detector_store.ALL_PHASES)
        state = detector_store.load(group, phases, METRICS[group.metric])
        _warm_up(group, state, ready, minutes[0])
    _judge(group, state, minutes)
    detector_store.save(group, state, () if state.learning.all() else phases)
    group.watermark = minutes[-1]
    group.save(update_fields=["watermark"])
    kept = unix_minute(moment_of(closed) - timedelta(hours=settings.FARRIER.raw_retention_h))
    DetectorOutput.objects.filter(group=group, minute__lt=kept).delete()
    return len(minutes)


def _due(group: DetectorGroup, closed: int) -> range:
    """The Unix minutes to judge now. Of a group of which nobody is known yet, only the newest: the rest is history."""
    if detector_store.load(group, frozenset(), METRICS[group.metric]).learning.all():
        return range(closed, closed + 1)
    first = max(group.watermark + 1, closed - REPLAY_LIMIT)
    return range(first, min(closed, first + REPLAY_MINUTES - 1) + 1)


def _judge(group: DetectorGroup, state: detector.State, minutes: range) -> None:
    matrix = samples.minute_matrix(group.metric, group.gpus, minutes[0], minutes[-1])
    scores = detector.Scores.empty(len(group.gpus))
    outputs, rebaselines = [], []
    for minute, values in zip(minutes, matrix, strict=True):
        detector.step(state, minute, values, scores)
        outputs.append(DetectorOutput(group=group, minute=minute, scores=detector_store.pack(scores)))
        rebaselines += [
            Rebaseline(
                gpu=group.gpus[shift.series],
                metric=group.metric,
                at=moment_of(minute),
                level_before=shift.before,
                level_after=shift.after,
            )
            for shift in scores.shifts
        ]
    DetectorOutput.objects.bulk_create(outputs, batch_size=detector_store.BATCH_ROWS)
    Rebaseline.objects.bulk_create(rebaselines)


def _ready(group: DetectorGroup, state: detector.State, minutes: range) -> Indices:
    """The series that should learn from their history before these minutes: unknown ones, and once a weekly season."""
    unknown = np.flatnonzero(state.learning)
    found = [_heard_for(group, unknown, minutes[0], detector.LEARNING_DAYS)]
    if any(minute % 60 == 0 for minute in minutes):
        daily = ~state.learning & (state.days < detector.WEEKLY_DAYS) & (np.abs(state.drift) < STEADY)
        found.append(_heard_for(group, np.flatnonzero(daily), minutes[0], detector.WEEKLY_DAYS))
    ready = np.concatenate(found)
    # one that keeps failing, for the holes it has, must not stand in the others' way for ever
    return np.roll(ready, -(minutes[0] * WARM_UP_GPUS) % max(len(ready), 1))[:WARM_UP_GPUS]


def _heard_for(group: DetectorGroup, series: Indices, first: int, days: int) -> Indices:
    """Those of the series that had values so many days ago."""
    if series.size == 0:
        return series
    began = first - days * DAY
    probe = samples.minute_matrix(group.metric, _numbers(group, series), began - PROBE_MINUTES, began)
    return series[np.isfinite(probe).any(axis=0)]


def _warm_up(group: DetectorGroup, state: detector.State, series: Indices, first: int) -> None:
    for begin in range(0, len(series), HISTORY_GPUS):
        some = series[begin : begin + HISTORY_GPUS]
        start = first - HISTORY_DAYS * DAY
        history = samples.minute_matrix(group.metric, _numbers(group, some), start, first - 1)
        detector.warm_up(state, history, start, some)


def _numbers(group: DetectorGroup, series: Indices) -> list[int]:
    return [group.gpus[index] for index in series]


def findings(now: datetime) -> Findings:
    """Return the unusual values of each group's newest minute: |z| beyond the threshold, a break, a shift.

    A metric without a value is no finding; a GPU without any is silent.
    """
    existing = np.fromiter(Gpu.objects.values_list("number", flat=True), np.int64)
    newest = DetectorOutput.objects.filter(minute=F("group__watermark"), group__metric__in=METRICS)
    rows: list[Finding] = []
    minute: int | None = None
    known: set[int] = set()
    judged: set[int] = set()
    heard: set[int] = set()
    for output in newest.select_related("group").order_by("group__metric", "group__number"):
        gpus = np.array(output.group.gpus, np.int64)
        known.update(gpus.tolist())
        minute = output.minute if minute is None else max(minute, output.minute)
        if moment_of(output.minute) < now - STALE:
            judged.update(gpus.tolist())
            continue
        scores = detector_store.unpack(output.scores)
        gpus = gpus[: len(scores)]  # later ones have joined since
        here = np.isin(gpus, existing)
        learned = here & ~np.isnan(scores["scale"])
        valued = learned & (scores["kind"] != Kind.NO_DATA)
        judged.update(gpus[learned].tolist())
        heard.update(gpus[valued].tolist())
        unusual = valued & (scores["kind"] != Kind.NONE)
        rows += _found(output, gpus[unusual], scores[unusual])
    present = known.intersection(existing.tolist())
    judged &= present
    return Findings(
        minute=None if minute is None else moment_of(minute),
        rows=rows,
        learning=present - judged,
        silent=judged - heard,
    )


def last_minutes(gpu: int, metric: str, since: datetime) -> list[BandPoint]:
    """Return what was expected of a GPU (its number) since then, by minute, and of the two minutes to come.

    Empty while it is being learned; minutes beyond the raw retention are gone. Of the week before its first judged
    minute, which it was learned from, what it is known for now: season and level.
    """
    group = DetectorGroup.objects.filter(metric=metric, gpus__contains=[gpu]).first()
    if group is None:
        return []
    place, first = group.gpus.index(gpu), unix_minute(since)
    part = detector_store.one_gpu("scores", place, detector_store.SCORE.itemsize)
    outputs = DetectorOutput.objects.filter(group=group, minute__gte=first).annotate(part=part).order_by("minute")
    points = [
        _point(minute, *(value.item() for value in detector_store.unpack(stored)[0]))
        for minute, stored in outputs.values_list("minute", "part")
        if len(stored) == detector_store.SCORE.itemsize
    ]
    points = [point for point in points if not isnan(point.low)]
    begun = unix_minute(points[0].time) if points else group.watermark + 1
    learned = range(max(first, begun - LEARNED_SHOWN), begun)
    ahead = range(max(first, group.watermark + 1), group.watermark + 1 + AHEAD_MINUTES)
    known = [point for point in _predicted(group, place, [*learned, *ahead]) if not isnan(point.low)]
    split = sum(point.time < moment_of(begun) for point in known)
    return known[:split] + points + known[split:]


def _found(output: DetectorOutput, gpus: NDArray[np.int64], scores: NDArray[np.void]) -> list[Finding]:
    found = []
    for gpu, score in zip(gpus.tolist(), scores, strict=True):
        expected, scale, z, kind = score.item()
        observed = expected + z * scale
        found.append(
            Finding(gpu, output.group.metric, moment_of(output.minute), observed, expected, scale, z, Kind(kind))
        )
    return found


def _point(minute: int, expected: float, scale: float, z: float, kind: int) -> BandPoint:
    half = THRESHOLD * scale
    unheard = isnan(z)
    return BandPoint(
        time=moment_of(minute),
        expected=expected,
        low=expected - half,
        high=expected + half,
        z=None if unheard else z,
        kind=Kind(kind),
        observed=None if unheard else expected + z * scale,
    )


def _predicted(group: DetectorGroup, place: int, minutes: Sequence[int]) -> list[BandPoint]:
    """The band of minutes that nobody has judged yet, from the stored state of one GPU."""
    phases = {*detector_store.phases_of(minutes), *detector_store.VECTOR_PHASES.values()}
    part = detector_store.one_gpu("vector", place, detector_store.FLOAT.itemsize)
    rows = DetectorState.objects.filter(group=group, phase__in=phases).annotate(part=part)
    known = {
        phase: float(np.frombuffer(stored, detector_store.FLOAT)[0])
        for phase, stored in rows.values_list("phase", "part")
        if len(stored) == detector_store.FLOAT.itemsize
    }
    level, scale = (known.get(detector_store.VECTOR_PHASES[name], nan) for name in ("level", "scale"))
    return [
        _point(
            minute, level + sum(known.get(phase, 0.0) for phase in detector_store.phases_of([minute])), scale, nan, 0
        )
        for minute in minutes
    ]
