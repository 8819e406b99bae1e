"""How many series one core judges a second: the detector's tick, beside refitting STL and a loop over series.

A point is one series' value of one minute, scored and learned from. Ours is 100,000 series a tick; the peers do fewer
and are multiplied up, which flatters neither: their cost is by series. In every tick one value in a hundred is missing
and one in a thousand is hot, for a clean fleet would be a fleet that needs no detector.
"""

from __future__ import annotations

import math
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from apps.observability import detector
from apps.observability.detector import (
    CLIP,
    DAY,
    DRIFT_RATE,
    HALF,
    LEVEL_RATE,
    SCALE_RATE,
    SEASON_RATE,
    SLOW_MINUTES,
    WEEK_RATE,
)

TARGET_POINTS_PER_S = 100e6
SERIES = 100_000
TICKS = 60
ROUNDS = 5
LOOP_SERIES = 2_000
STL_SERIES = 2
FIRST = 29_000_160
FLOOR = np.float32(0.5)


def main() -> int:
    """Measure peers and ours in turns; print medians. 1 when short of the target."""
    print(f"{cpu()}, Python {platform.python_version()}, numpy {np.__version__}; seconds of one core's time")
    state, out = fleet(SERIES), detector.Scores.empty(SERIES)
    noise, faulty = disturbances(faults=False), disturbances(faults=True)
    agree(faulty[:3])
    measured: dict[str, list[float]] = {}
    for turn in range(ROUNDS):
        minute = FIRST + turn * TICKS  # phases that no cache has seen for long
        found = {
            "ours": ticks(state, faulty, minute, out),
            "ours, nothing missing or hot": ticks(state, noise, minute, out),
            "the same formulas in a loop over series": [per_point(lambda: loop(noise[:3]), LOOP_SERIES * 3)],
            "statsmodels STL refitted, R's jumps": [per_point(refit(robust=False), STL_SERIES)],
            "the same, robust": [per_point(refit(robust=True), STL_SERIES)],
        }
        for name, seconds in found.items():
            measured.setdefault(name, []).extend(seconds)
    ours = statistics.median(measured["ours"])
    for name, seconds_each in measured.items():
        median = statistics.median(seconds_each)
        print(
            f"{name}: {1 / median:,.0f} points/s, {median * SERIES * 1e3:,.2f} ms a tick of {SERIES:,} series"
            + ("" if name.startswith("ours") else f" (extrapolated), {median / ours:,.0f} times ours")
        )
    size = detector.state_bytes_per_series()
    print(f"state: {size:,} bytes a series, {SERIES * size / 1e6:,.0f} MB")
    met = 1 / ours >= TARGET_POINTS_PER_S
    verdict = "ok" if met else "short"
    print(f"detector_tick: {1 / ours / 1e6:.0f} M points/s, target >= {TARGET_POINTS_PER_S / 1e6:.0f}: {verdict}")
    return 0 if met else 1


def swings() -> detector.Floats:
    """How far each series goes up and down in a day."""
    return np.random.default_rng(1).uniform(1, 5, SERIES).astype(np.float32)


def normal(minute: int) -> detector.Floats:
    """What a fleet without noise shows."""
    return 62 + swings() * np.float32(math.sin(2 * math.pi * (minute % DAY) / DAY))


def fleet(series: int) -> detector.State:
    """A fleet that is known, every phase of it in memory."""
    state = detector.State.empty(series, float(FLOOR))
    for phase in range(DAY):
        np.subtract(normal(phase), 62, out=state.season[phase])
    state.week += np.float32(0.0)  # touched: otherwise its pages are the kernel's one zero page
    state.level[:], state.scale[:], state.days[:] = 62.0, 1.0, 14.0
    return state


def disturbances(*, faults: bool) -> list[detector.Floats]:
    """An hour of noise, with holes and heat or without."""
    random = np.random.default_rng(2)
    rows = []
    for _ in range(TICKS):
        row = random.standard_normal(SERIES, dtype=np.float32)
        if faults:
            row[random.integers(0, SERIES, SERIES // 100)] = np.nan
            row[random.integers(0, SERIES, SERIES // 1_000)] += np.float32(19.0)
        rows.append(row)
    return rows


def ticks(state: detector.State, rows: list[detector.Floats], first: int, out: detector.Scores) -> list[float]:
    """What a worker does a minute, as often as there are rows; seconds a point of every four: one in four does more."""
    found = []
    for begin in range(0, len(rows), SLOW_MINUTES):
        minutes = range(first + begin, first + begin + SLOW_MINUTES)
        observed = [normal(minute) + row for minute, row in zip(minutes, rows[begin:], strict=False)]
        found.append(per_point(partial(steps, state, minutes, observed, out), SERIES * SLOW_MINUTES))
    return found


def steps(state: detector.State, minutes: range, observed: list[detector.Floats], out: detector.Scores) -> None:
    for minute, row in zip(minutes, observed, strict=True):
        detector.step(state, minute, row, out)


def loop(rows: list[detector.Floats]) -> list[float]:
    """The same formulas, a series at a time; returns the last z of each, NaN where the last value is missing."""
    found = []
    observed = [normal(FIRST + tick) + row for tick, row in enumerate(rows)]
    for index, swing in enumerate(swings()[:LOOP_SERIES].tolist()):
        level, scale, drift, week, z = 62.0, 1.0, 0.0, 0.0, math.nan
        for tick, row in enumerate(observed):
            season = swing * math.sin(2 * math.pi * ((FIRST + tick) % DAY) / DAY)  # its phase comes once here
            z = (float(row[index]) - (level + season + week)) / scale
            if not math.isfinite(z):
                continue
            taught = max(min(z, float(CLIP)), -float(CLIP))
            drift += (taught - drift) * float(DRIFT_RATE)
            taught *= scale
            season += taught * float(SEASON_RATE)
            if (FIRST + tick) % SLOW_MINUTES:
                continue
            level += taught * float(LEVEL_RATE)
            week += taught * float(WEEK_RATE)
            scale = max(scale * (1 + math.copysign(float(SCALE_RATE), abs(z) - float(HALF))), float(FLOOR))
        found.append(z)
    return found


def agree(rows: list[detector.Floats]) -> None:
    """The loop is a second opinion too: both must say the same of every series."""
    state, z = fleet(SERIES), np.empty(0, np.float32)
    for tick, row in enumerate(rows):
        z = detector.step(state, FIRST + tick, normal(FIRST + tick) + row).z[:LOOP_SERIES]
    np.testing.assert_allclose(z, loop(rows), atol=1e-3)


def refit(*, robust: bool) -> Callable[[], None]:
    """A week of two series, with STL fitted to each as a new point comes."""
    try:
        from statsmodels.tsa.seasonal import STL
    except ImportError:
        sys.exit("statsmodels is missing: it is the peer here, and in requirements/dev.in.")
    minute = np.arange(7 * DAY)
    noise = np.random.default_rng(3).standard_normal((STL_SERIES, 7 * DAY))
    weeks = 62 + 3 * np.sin(2 * np.pi * minute / DAY) + noise

    def run() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for week in weeks:
                peer = STL(week, period=DAY, seasonal=7, trend_jump=217, low_pass_jump=145, robust=robust)
                peer.fit(**({} if robust else {"inner_iter": 2, "outer_iter": 0}))

    return run


def per_point(work: Callable[[], object], points: int) -> float:
    """Seconds of this thread's processor time a point: who else runs on the machine counts as little as can be."""
    start = time.thread_time()
    work()
    return (time.thread_time() - start) / points


def cpu() -> str:
    """What the kernel calls the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    sys.exit(main())
