"""Where the detector and STL must agree, and where STL must not be followed. Peer: statsmodels' STL."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from apps.observability import detector
from apps.observability.decompose import decompose
from tests.observability.series import DAY, FIRST, Floats, noise, warm

# statsmodels 0.15.0, STL(shape(), period=1440, seasonal=7, trend_jump=217, low_pass_jump=145): what the golden series
# has every three hours, and its level. They hold where statsmodels isn't installed.
GOLDEN_HOURS = (0, 3, 6, 9, 12, 15, 18, 21)
GOLDEN_SEASON = (0.751389, 0.312050, 2.251389, 2.433373, -2.248611, -1.809272, -1.748611, -1.930591)
GOLDEN_LEVEL = 62.748611
FAULT = slice(3 * DAY + 180, 3 * DAY + 240)  # an hour from 03:00 on the fourth of seven days


def shape(days: int = 7) -> Floats:
    """A day with two harmonics and an edge, again and again, (minutes,)."""
    minute = np.arange(days * DAY)
    angle = 2 * np.pi * minute / DAY
    edge = 2.0 * (minute % DAY > 900)
    return (62.0 + 3.0 * np.sin(angle) + 1.5 * np.cos(3 * angle) + edge).astype(np.float32)


def stl(values: Floats, *, robust: bool = False) -> Any:
    """What statsmodels makes of it, with the jumps that R takes: without them a series takes it twelve seconds."""
    seasonal = pytest.importorskip("statsmodels.tsa.seasonal", reason="statsmodels is not installed")
    peer = seasonal.STL(values.astype(float), period=DAY, seasonal=7, trend_jump=217, low_pass_jump=145, robust=robust)
    return peer.fit()


def test_the_golden_season_and_level():
    ours = decompose(shape()[:, None], FIRST)
    assert ours.season[[hour * 60 for hour in GOLDEN_HOURS], 0] == pytest.approx(GOLDEN_SEASON, abs=1e-4)
    assert ours.level[0] == pytest.approx(GOLDEN_LEVEL, abs=1e-4)


def test_season_and_level_of_a_clean_series_are_stls():
    theirs, ours = stl(shape()), decompose(shape()[:, None], FIRST)
    assert np.abs(theirs.seasonal.reshape(7, DAY) - ours.season[:, 0]).max() < 1e-4
    assert ours.level[0] == pytest.approx(theirs.trend[-DAY:].mean(), abs=1e-4)
    assert theirs.seasonal[[hour * 60 for hour in GOLDEN_HOURS]] == pytest.approx(GOLDEN_SEASON, abs=1e-5)


def test_season_and_level_of_a_rising_series_are_stls():
    values = shape() + np.linspace(0.0, 3.0, 7 * DAY, dtype=np.float32)
    theirs, ours = stl(values), decompose(values[:, None], FIRST)
    assert np.abs(theirs.seasonal.reshape(7, DAY) - ours.season[:, 0]).max() < 1e-3
    assert ours.level[0] == pytest.approx(theirs.trend[-DAY:].mean(), abs=0.01)


def test_in_noise_the_season_is_as_near_the_truth_as_robust_stls():
    values = shape() + noise(7 * DAY)[:, 0]
    theirs, ours = stl(values, robust=True), decompose(values[:, None], FIRST)
    truth = shape(1) - shape(1).mean()
    their_error = np.std(theirs.seasonal.reshape(7, DAY).mean(axis=0) - truth)
    assert np.std(ours.season[:, 0] - truth) < 1.1 * their_error
    assert ours.level[0] == pytest.approx(theirs.trend[-DAY:].mean(), abs=0.3)


def test_a_fault_in_the_history_has_the_residual_of_robust_stl():
    values = shape() + noise(7 * DAY)[:, 0]
    values[FAULT] += 19.0
    plain, robust, ours = stl(values), stl(values, robust=True), decompose(values[:, None], FIRST)
    residual = (values - np.tile(ours.season[:, 0], 7) - ours.level[0])[FAULT].mean()
    assert residual == pytest.approx(robust.resid[FAULT].mean(), abs=1.0)
    assert plain.resid[FAULT].mean() < 15.0  # a third of the fault went into its season


def test_at_the_newest_point_stl_takes_in_what_the_detector_shows():
    values = shape() + noise(7 * DAY)[:, 0]
    state = warm(values[:-1, None])
    values[-1] += 19.0
    scores = detector.step(state, FIRST + 7 * DAY - 1, values[-1:])
    residual = float(values[-1] - scores.expected[0])
    assert stl(values).resid[-1] < 10.0
    assert residual == pytest.approx(stl(values, robust=True).resid[-1], abs=1.0)
    assert scores.z[0] > 10.0
