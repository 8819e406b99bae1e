"""What a series should be at this minute, how far off it is, and what the detector learns from that. Pure numpy.

A series is modelled as level + daily season (1,440 minutes) + weekly offset (168 hours) + noise. Each minute is scored
first and learned from afterwards, and what is learned is clipped at three sigmas: a fault of 19 °C moves next day's
season by 0.3 °C, where refitting STL takes in most of it. All series of a group move together, one array a phase.

    expected = level + season[minute of day] + week[hour of week];  z = (value - expected) / scale

`scale` is the noise's standard deviation, tracked through the median of |z| (0.6745 for a normal one), so that a fault
can't blow it up by its size, only slowly by its length. `drift` is the mean of the clipped z over about an hour.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from apps.observability.decompose import DAY, WEEK, Decomposition, Floats, decompose

VECTORS = ("level", "scale", "drift", "standing", "offset", "days")
LEARNING_DAYS = 2  # nothing is said of a series before it has been seen for so long
WEEKLY_DAYS = 14  # a week seen once could be chance

THRESHOLD = 4.0  # |z| of a spike, and half the width of the expected band, in sigmas
CLIP = np.float32(3.0)  # sigmas: what one minute may teach at most
DRIFT_RATE = np.float32(1 / 60)  # a memory of an hour
BREAK = 2.0  # sigmas of drift: a trend break
LEAN = 1.5  # sigmas of drift below which a level shift is not (or no longer) in the making
STANDING = float(DAY)  # minutes that a drift stands before it is the new level: it was there at every time of the day
SEASON_RATE = np.float32(0.1)  # a phase comes once a day
SLOW_MINUTES = 4  # what changes slowly learns from one minute in four: noise has hardly moved in between
LEVEL_RATE = np.float32(SLOW_MINUTES / (7 * DAY))
WEEK_RATE = np.float32(SLOW_MINUTES * 0.1 / 60)  # an hour of the week has sixty minutes
SCALE_RATE = np.float32(SLOW_MINUTES / (2 * DAY))
HALF = np.float32(0.6745)  # half of a normal variable's values lie within so many sigmas
COVER = 0.9  # share of the minutes that a history must have
HISTORY_BLOCK = 64  # series at a time, for history
BLOCK = 32_768  # series at a time: what a block touches stays in the core's own cache


class Kind(IntEnum):
    """What is wrong with a value; the code that is stored."""

    NONE = 0
    SPIKE = 1  # further off than the threshold
    TREND_BREAK = 2  # off, and has been for the better part of an hour
    LEVEL_SHIFT = 3  # was off for a whole day; from this minute on that is its level
    NO_DATA = 4  # known series, no value

    def __str__(self) -> str:
        return self.name.lower()


@dataclass
class State:
    """What is known of n series; arrays are float32. A series whose `scale` is NaN is still being learned."""

    floor: float  # the least scale, in the metric's unit: below it a difference means nothing
    season: Floats  # (1440, n)
    week: Floats  # (168, n)
    level: Floats  # (n,)
    scale: Floats  # (n,)
    drift: Floats  # (n,) sigmas
    standing: Floats  # (n,) minutes that the drift has stood
    offset: Floats  # (n,) mean residual of those minutes
    days: Floats  # (n,) days of history that its warm-up had

    @classmethod
    def empty(cls, series: int, floor: float) -> State:
        """Return the state of series of which nothing is known. Zeros that nobody writes to take no memory."""
        vectors = {name: np.zeros(series, np.float32) for name in VECTORS}
        vectors["scale"].fill(np.nan)
        return cls(floor, np.zeros((DAY, series), np.float32), np.zeros((WEEK, series), np.float32), **vectors)

    @property
    def learning(self) -> NDArray[np.bool_]:
        """The series of which nothing is said yet, (n,)."""
        return np.isnan(self.scale)


class Shift(NamedTuple):
    """A series (its index) that was given a new level."""

    series: int
    before: float
    after: float


@dataclass
class Scores:
    """One minute's judgment of n series: expected and scale as they were before this minute taught anything.

    `z` is NaN without a value; all three are NaN while a series is learned.
    """

    expected: Floats
    scale: Floats
    z: Floats
    kind: NDArray[np.uint8]
    shifts: list[Shift] = field(default_factory=list)

    @classmethod
    def empty(cls, series: int) -> Scores:
        """Return a place for the scores of so many series."""
        expected, scale, z = (np.empty(series, np.float32) for _ in range(3))
        return cls(expected, scale, z, np.zeros(series, np.uint8))


def season_phase(minute: int) -> int:
    """The minute of the (UTC) day of a Unix minute."""
    return minute % DAY


def week_phase(minute: int) -> int:
    """The hour of the week of a Unix minute, counted from Thursday 00:00 UTC, as Unix time began."""
    return minute // 60 % WEEK


def predict(state: State, minute: int) -> Floats:
    """Return what each series is expected to be, (n,); NaN while learning."""
    expected: Floats = state.level + state.season[season_phase(minute)] + state.week[week_phase(minute)]
    expected[state.learning] = np.nan
    return expected


def step(state: State, minute: int, values: Floats, out: Scores | None = None) -> Scores:
    """Score one Unix minute's values, (n,) float32 with NaN where there is none; then learn from them.

    Minutes come in order; one that nobody has values of may be left out. `out` spares new arrays.
    """
    scores = out if out is not None else Scores.empty(len(values))
    scores.shifts.clear()
    scratch = _Scratch(min(len(values), BLOCK))
    # what overflows or isn't finite counts as missing
    with np.errstate(over="ignore", invalid="ignore"):
        for begin in range(0, len(values), BLOCK):
            _Block(state, minute, values, scores, slice(begin, begin + BLOCK), scratch).run()
    return scores


_NOTHING = np.empty(0, np.intp)


class _Scratch:
    """Arrays that all blocks of a step use in turn, so that they stay in the cache."""

    def __init__(self, size: int) -> None:
        self.taught, self.change = np.empty(size, np.float32), np.empty(size, np.float32)
        self.mask, self.suspect = np.empty(size, np.bool_), np.empty(size, np.bool_)


class _Block:
    """One step of a slice of the series, written for few passes over memory; every array is (block,) and a view."""

    def __init__(
        self, state: State, minute: int, values: Floats, scores: Scores, part: slice, scratch: _Scratch
    ) -> None:
        self.begin, self.floor, self.shifts = part.start, np.float32(state.floor), scores.shifts
        self.slow = minute % SLOW_MINUTES == 0
        self.season, self.week = state.season[season_phase(minute), part], state.week[week_phase(minute), part]
        self.level, self.scale, self.drift = state.level[part], state.scale[part], state.drift[part]
        self.standing, self.offset = state.standing[part], state.offset[part]
        self.values, self.expected, self.z = values[part], scores.expected[part], scores.z[part]
        self.used, self.kind = scores.scale[part], scores.kind[part]
        size = len(self.values)
        self.taught, self.change = scratch.taught[:size], scratch.change[:size]
        self.mask, self.suspect = scratch.mask[:size], scratch.suspect[:size]

    def run(self) -> None:
        """Predict, score, learn, name."""
        np.add(self.level, self.season, out=self.expected)
        self.expected += self.week
        np.subtract(self.values, self.expected, out=self.z)
        self.z /= self.scale
        self.used[:] = self.scale
        np.isfinite(self.z, out=self.mask)
        if self.mask.all():
            self._learn(_NOTHING)
            self._name(_NOTHING)
            return
        missing = np.flatnonzero(~self.mask)
        held = [(vector, vector[missing]) for vector in (self.scale, self.drift)]
        self.z[missing] = 0.0
        self._learn(missing)
        self._name(missing)
        for vector, before in held:  # what wasn't seen teaches nothing
            vector[missing] = before
        self._mark_missing(missing)

    def _learn(self, missing: NDArray[np.intp]) -> None:
        taught, change = self.taught, self.change
        np.minimum(self.z, CLIP, out=taught)
        np.maximum(taught, -CLIP, out=taught)
        np.subtract(taught, self.drift, out=change)
        change *= DRIFT_RATE
        self.drift += change
        taught *= self.scale
        if missing.size:
            taught[missing] = 0.0
        self.season += np.multiply(taught, SEASON_RATE, out=change)
        if self.slow:
            self.level += np.multiply(taught, LEVEL_RATE, out=change)
            self.week += np.multiply(taught, WEEK_RATE, out=change)
        np.abs(self.z, out=change)
        np.greater(change, THRESHOLD, out=self.suspect)
        if self.slow:
            self._rescale(change)

    def _rescale(self, change: Floats) -> None:
        """Let the scale follow the median of |z|, which is in `change`, and is used up."""
        # a step up where |z| is above its median, a step down where it is below
        change -= HALF
        np.copysign(SCALE_RATE, change, out=change)
        change += np.float32(1.0)
        self.scale *= change
        np.maximum(self.scale, self.floor, out=self.scale)

    def _name(self, missing: NDArray[np.intp]) -> None:
        """Say what is wrong with the few series of which there is anything to say."""
        self.kind.fill(Kind.NONE)
        np.abs(self.drift, out=self.change)
        self.suspect |= np.greater(self.change, LEAN, out=self.mask)
        self.suspect |= np.greater(self.standing, 0.0, out=self.mask)
        self.suspect[missing] = False
        found = np.flatnonzero(self.suspect)
        if found.size == 0:
            return
        z, drift = self.z[found], self.drift[found]
        kind = np.where(np.abs(z) > THRESHOLD, Kind.SPIKE, Kind.NONE).astype(np.uint8)
        # a drift remembers for an hour: a value that is back to normal is no break
        kind[(np.abs(drift) > BREAK) & (z * np.sign(drift) > LEAN)] = Kind.TREND_BREAK
        self.kind[found] = kind
        self._stand(found, drift)

    def _stand(self, found: NDArray[np.intp], drift: Floats) -> None:
        """Count the minutes that a drift has stood; after a day of them, the level follows it, once."""
        minutes = np.where(np.abs(drift) > LEAN, self.standing[found] + np.float32(1.0), np.float32(0.0))
        residual = self.z[found] * self.used[found]
        before = self.offset[found]
        self.offset[found] = np.where(minutes > 0, before + (residual - before) / np.maximum(minutes, 1.0), 0.0)
        self.standing[found] = minutes
        for index in found[minutes >= STANDING]:
            level = float(self.level[index])
            self.level[index] += self.offset[index]
            self.kind[index] = Kind.LEVEL_SHIFT
            self.shifts.append(Shift(self.begin + int(index), level, float(self.level[index])))
            self.drift[index] = self.standing[index] = self.offset[index] = 0.0

    def _mark_missing(self, missing: NDArray[np.intp]) -> None:
        self.z[missing] = np.nan
        learning = np.isnan(self.scale[missing])
        self.expected[missing[learning]] = np.nan
        self.kind[missing] = np.where(learning, Kind.NONE, Kind.NO_DATA)


def warm_up(
    state: State, matrix: Floats, first_minute: int, series: NDArray[np.intp] | None = None
) -> NDArray[np.intp]:
    """Learn from history what there is to learn, and return the series (indices) of which that was enough.

    `matrix` is (minutes, columns) from Unix minute `first_minute` on; column i is series[i] (default: i). It takes two
    days with hardly a hole; weekly offsets take two weeks. The others' state stays as it is.
    """
    if series is None:
        series = np.arange(matrix.shape[1])
    present = np.isfinite(matrix)
    minutes = np.count_nonzero(present, axis=0)
    span = len(matrix) - np.argmax(present, axis=0)  # since the first value
    enough = (minutes >= COVER * LEARNING_DAYS * DAY) & (span >= LEARNING_DAYS * DAY)
    long = enough & (minutes >= COVER * WEEKLY_DAYS * DAY) & (span >= WEEKLY_DAYS * DAY)
    for columns, weekly in ((np.flatnonzero(enough & ~long), False), (np.flatnonzero(long), True)):
        for begin in range(0, len(columns), HISTORY_BLOCK):
            some = columns[begin : begin + HISTORY_BLOCK]
            found = decompose(np.where(present[:, some], matrix[:, some], np.nan), first_minute, weekly=weekly)
            _adopt(state, series[some], found)
            state.days[series[some]] = span[some] / DAY
    learned: NDArray[np.intp] = series[enough]
    return learned


def _adopt(state: State, series: NDArray[np.intp], found: Decomposition) -> None:
    state.season[:, series], state.week[:, series] = found.season, found.week
    state.level[series], state.scale[series] = found.level, np.maximum(found.scale, state.floor)
    for vector in (state.drift, state.standing, state.offset):
        vector[series] = 0.0


def state_bytes_per_series() -> int:
    """What one series costs in memory and in the database."""
    return 4 * (DAY + WEEK + len(VECTORS))
