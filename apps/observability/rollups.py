"""Minutes out of samples, hours out of minutes, days out of hours: the tick `observability.refresh`.

A minute is closed, and rolled up for all GPUs, a few seconds after its end. What a batch brings later it has written
down beside its rows (DirtyMinute); each such minute is made anew, for its GPUs, and the hours and days over it too.

Why nothing is missed: marks are deleted first, samples read by a later statement, so a mark that is gone has its rows
counted; a batch that commits in between leaves its mark for the next tick. Each step is one transaction that moves the
watermark with what it made. On TimescaleDB a refresh commits by itself, so marks go after it, by their ids: seen before
it, they are counted by it. Only marked minutes are refreshed: that of others would wipe out their history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import groupby
from time import monotonic
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from apps.observability import store
from apps.observability.models import DirtyMinute, Rollup
from apps.observability.rows import EPOCH
from protocol import metrics
from protocol.metrics import Kind

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
LAG = timedelta(seconds=10)  # agents ship every five seconds: most of a minute has come by then
STEP = 5  # minutes rolled up in one transaction
ROUNDS, BUDGET_S = 60, 30.0  # what one tick does at most: the next one goes on
_LOCK = 0x726F6C6C  # «roll»
Pairs = dict[datetime, set[int]]  # buckets, each with the GPUs that it is to be made for


@dataclass(frozen=True)
class Level:
    """One rollup of GPU samples: what it is made of, and how long its buckets are."""

    target: str
    source: str
    width: timedelta

    @property
    def of_raw(self) -> bool:
        return self.source == "gpu_sample"

    def floor(self, moment: datetime) -> datetime:
        """The beginning of the bucket that holds `moment`."""
        return floor(moment, self.width)


MINUTES = Level("gpu_minute", "gpu_sample", MINUTE)
LEVELS = (MINUTES, Level("gpu_hour", "gpu_minute", HOUR), Level("gpu_day", "gpu_hour", DAY))


def floor(moment: datetime, width: timedelta) -> datetime:
    """Round down to a multiple of `width` since 1970 (UTC)."""
    return moment - (moment - EPOCH) % width


def rolled_until(series: str = "gpu_minute", *, using: str = DEFAULT_DB_ALIAS) -> datetime:
    """Return the watermark: buckets that begin before it are closed. Long ago, when nothing was rolled up yet."""
    found = Rollup.objects.using(using).filter(series=series).values_list("rolled_until", flat=True).first()
    return found or EPOCH


def oldest_unrolled(series: str) -> datetime:
    """Return the moment from which on rows of gpu_sample or inference_log are still needed to roll up."""
    rollup = "gpu_minute" if series == "gpu_sample" else "inference_minute"
    dirty = DirtyMinute.objects.filter(series=series).order_by("minute").values_list("minute", flat=True).first()
    until = rolled_until(rollup)
    return until if dirty is None else min(until, dirty)


def refresh(now: datetime) -> int:
    """Roll up what is closed and what came late; return how many rounds that took. Bounded: the next tick goes on.

    A round does a piece of each kind of work, so that a long backlog of one kind doesn't hold up the others.
    """
    closed = floor(now - LAG, MINUTE)
    pieces = _refreshed if store.is_timescale() else _rolled
    deadline = monotonic() + BUDGET_S
    for done in range(ROUNDS):
        if monotonic() > deadline or not pieces(closed):
            return done
    return ROUNDS


# plain partitions


def _rolled(closed: datetime) -> bool:
    """Do a piece of each kind of work, a transaction each; False: there is none, or somebody else is at it."""
    worked = False
    for piece in (_next_minutes, _late_minutes, _request_minutes):
        with transaction.atomic(using=store.owner()):
            if not _locked():
                return False
            worked |= piece(closed)
    return worked


def _locked() -> bool:
    with connections[store.owner()].cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        (locked,) = cursor.fetchone()
    return bool(locked)


def _next_minutes(closed: datetime) -> bool:
    """Roll up the next minutes that are closed now, and the hours and days that they complete."""
    since, until = _next_span(closed)
    if since >= until:
        return False
    _marks("gpu_sample", since, until).delete()
    _roll_span(MINUTES, max(since, until - STEP * MINUTE), until)
    _move(MINUTES.target, until)
    for level in LEVELS[1:]:
        first, last = _watermark(level), level.floor(until)
        if first < last:
            _roll_span(level, first, last)
            _move(level.target, last)
        until = last
    return True


def _late_minutes(closed: datetime) -> bool:
    """Make anew the minutes behind the watermark that batches have marked, and what lies over them."""
    last = _last_of_a_step("gpu_sample", min(closed, _watermark(MINUTES)))
    if last is None:
        return False
    pairs: Pairs = {}
    marks = list(_marks("gpu_sample", EPOCH, last + MINUTE).values_list("pk", "minute", "gpus"))
    for _, minute, gpus in marks:
        pairs.setdefault(minute, set()).update(gpus)
    _forget(pk for pk, _, _ in marks)
    for level in LEVELS:
        until = _watermark(level)
        pairs = _over(level, pairs)
        roll_pairs(level, {bucket: gpus for bucket, gpus in pairs.items() if bucket < until}, level.target)
    return True


def _request_minutes(closed: datetime) -> bool:
    """Roll up marked minutes of the request log, new and late alike."""
    last = _last_of_a_step("inference_log", closed)
    if last is None:
        _move("inference_minute", closed)
        return False
    marks = dict(_marks("inference_log", EPOCH, last + MINUTE).values_list("pk", "minute"))
    _forget(marks)
    minutes = sorted(set(marks.values()))
    store.ensure_days("inference_minute", {minute.date() for minute in minutes}, using=store.owner())
    _execute(store.sql("roll_inference_minute"), minutes=minutes)
    return True


def _roll_span(level: Level, since: datetime, until: datetime) -> None:
    store.ensure_days(level.target, _days(since, until), using=store.owner())
    _execute(_template("roll_gpu_span", level), width=level.width, since=since, until=until)


def roll_pairs(level: Level, pairs: Pairs, table: str) -> None:
    """Make single buckets of single GPUs anew in `table`; the days must be the target's."""
    if not pairs:
        return
    flat = [(bucket, gpu) for bucket, gpus in sorted(pairs.items()) for gpu in sorted(gpus)]
    wanted = {"buckets": [bucket for bucket, _ in flat], "gpus": [gpu for _, gpu in flat]}
    store.ensure_days(level.target, {bucket.date() for bucket in pairs}, using=store.owner())
    _execute(store.sql("forget_gpu").format(target=table), **wanted)
    _execute(_template("roll_gpu_late", level, table), width=level.width, **wanted)


def _over(level: Level, pairs: Pairs) -> Pairs:
    """The buckets of a level that hold these, with their GPUs."""
    found: Pairs = {}
    for bucket, gpus in pairs.items():
        found.setdefault(level.floor(bucket), set()).update(gpus)
    return found


# TimescaleDB


def _refreshed(closed: datetime) -> bool:
    """Do a piece of each kind of work by refreshing continuous aggregates, each refresh its own transaction."""
    with _alone() as alone:
        pieces = (_next_refreshed, _late_refreshed, _requests_refreshed) if alone else ()
        worked = [piece(closed) for piece in pieces]
    return any(worked)


@contextmanager
def _alone() -> Iterator[bool]:
    """Hold off other refreshes: by a lock of the session, since a refresh can't be part of a transaction."""
    with connections[store.owner()].cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK])
        (alone,) = cursor.fetchone()
    try:
        yield alone
    finally:
        if alone:
            with connections[store.owner()].cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])


def _next_refreshed(closed: datetime) -> bool:
    since, until = _next_span(closed)
    if since >= until:
        return False
    marks = dict(_marks("gpu_sample", since, until).values_list("pk", "minute"))
    for first, end in _runs(set(marks.values()), MINUTE):
        _refresh(MINUTES.target, first, end)
    _move(MINUTES.target, until)
    for level in LEVELS[1:]:
        first, last = _watermark(level), level.floor(until)
        if first < last:
            _refresh(level.target, first, last)
            _move(level.target, last)
        until = last
    _forget(marks)
    return True


def _late_refreshed(closed: datetime) -> bool:
    last = _last_of_a_step("gpu_sample", min(closed, _watermark(MINUTES)))
    if last is None:
        return False
    marks = dict(_marks("gpu_sample", EPOCH, last + MINUTE).values_list("pk", "minute"))
    minutes = set(marks.values())
    for level in LEVELS:
        until = _watermark(level)
        buckets = {level.floor(minute) for minute in minutes}
        for first, end in _runs((bucket for bucket in buckets if bucket < until), level.width):
            _refresh(level.target, first, end)
    _forget(marks)
    return True


def _requests_refreshed(closed: datetime) -> bool:
    last = _last_of_a_step("inference_log", closed)
    if last is None:
        _move("inference_minute", closed)
        return False
    marks = dict(_marks("inference_log", EPOCH, last + MINUTE).values_list("pk", "minute"))
    for first, end in _runs(set(marks.values()), MINUTE):
        _refresh("inference_minute", first, end)
    _forget(marks)
    return True


def _refresh(view: str, since: datetime, until: datetime) -> None:
    _execute("CALL refresh_continuous_aggregate(%(view)s, %(since)s, %(until)s)", view=view, since=since, until=until)


def _runs(buckets: Iterable[datetime], width: timedelta) -> Iterator[tuple[datetime, datetime]]:
    """Yield [first, end) of each unbroken run of buckets: what lies between two runs is not to be touched."""
    ordered = enumerate(sorted(buckets))
    for _, run in groupby(ordered, key=lambda pair: pair[1] - pair[0] * width):
        members = [bucket for _, bucket in run]
        yield members[0], members[-1] + width


# both


def _next_span(closed: datetime) -> tuple[datetime, datetime]:
    """The next closed minutes: from the watermark to a step behind the next marked one, before which all is empty."""
    since, *_ = [_begin(level.target, level.floor(closed)) for level in LEVELS]
    marked = _marks("gpu_sample", since, closed).order_by("minute").values_list("minute", flat=True).first()
    return since, closed if marked is None else min(closed, marked + STEP * MINUTE)


def _watermark(level: Level) -> datetime:
    """The watermark as this very transaction sees it."""
    return rolled_until(level.target, using=store.owner())


def _begin(series: str, otherwise: datetime) -> datetime:
    """The watermark. The first time of all it is `otherwise`: what lies before that has marks."""
    row, _ = Rollup.objects.using(store.owner()).get_or_create(series=series, defaults={"rolled_until": otherwise})
    return row.rolled_until


def _move(series: str, until: datetime) -> None:
    """Move a watermark on; never back."""
    Rollup.objects.using(store.owner()).get_or_create(series=series, defaults={"rolled_until": until})
    Rollup.objects.using(store.owner()).filter(series=series, rolled_until__lt=until).update(rolled_until=until)


def _marks(series: str, since: datetime, until: datetime) -> Any:
    return DirtyMinute.objects.using(store.owner()).filter(series=series, minute__gte=since, minute__lt=until)


def _forget(marks: Iterable[int]) -> None:
    DirtyMinute.objects.using(store.owner()).filter(pk__in=list(marks)).delete()


def _last_of_a_step(series: str, until: datetime) -> datetime | None:
    """The last of the oldest marked minutes that one step takes on; None: none is marked before `until`."""
    minutes = _marks(series, EPOCH, until).order_by("minute").values_list("minute", flat=True).distinct()[:STEP]
    return max(minutes, default=None)


def _days(since: datetime, until: datetime) -> set[Any]:
    return {(since + n * DAY).date() for n in range((until - since) // DAY + 1)} | {(until - MINUTE).date()}


def _execute(statement: str, **parameters: Any) -> None:
    with connections[store.owner()].cursor() as cursor:
        cursor.execute(statement, parameters)


@cache
def _template(name: str, level: Level, table: str = "") -> str:
    """A roll-up's SQL, with the columns of protocol.metrics.GPU filled in."""
    made: Mapping[str, str] = _of_raw() if level.of_raw else _of_rollup()
    return store.sql(name).format(
        target=table or level.target,
        source=level.source,
        samples="count(*)" if level.of_raw else "sum(samples)",
        columns=", ".join(made),
        aggregates=",\n       ".join(made.values()),
        updates=", ".join(f"{column} = excluded.{column}" for column in made),
    )


def _of_raw() -> dict[str, str]:
    """Columns of a rollup, each as it is made of samples. Sums are made in float8: sixty float4 would lose digits."""
    made: dict[str, str] = {}
    for metric in metrics.GPU:
        name = metric.name
        if metric.kind is Kind.GAUGE:
            made[f"{name}_sum"] = f"sum({name}::float8)::real"
            made[f"{name}_count"] = f"count({name})"
            made[f"{name}_min"] = f"min({name})"
            made[f"{name}_max"] = f"max({name})"
        else:
            made[name] = _combined(metric)
    return made


def _of_rollup() -> dict[str, str]:
    """Columns of a rollup, each as it is made of a finer one's."""
    made: dict[str, str] = {}
    for metric in metrics.GPU:
        name = metric.name
        if metric.kind is Kind.GAUGE:
            made[f"{name}_sum"] = f"sum({name}_sum::float8)::real"
            made[f"{name}_count"] = f"sum({name}_count)"
            made[f"{name}_min"] = f"min({name}_min)"
            made[f"{name}_max"] = f"max({name}_max)"
        else:
            made[name] = _combined(metric)
    return made


def _combined(metric: metrics.Metric) -> str:
    """One value for many: a counter's last, all bits of flags, the highest code."""
    name = metric.name
    if metric.kind is Kind.COUNTER:
        # the greatest (time, value) is the last value; sorting each group would cost ten times that
        return f"(max(ARRAY[date_part('epoch', time), {name}]) FILTER (WHERE {name} IS NOT NULL))[2]::real"
    return f"bit_or({name})" if metric.kind is Kind.FLAGS else f"max({name})"
