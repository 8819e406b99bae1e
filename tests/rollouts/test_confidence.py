"""Betting confidence sequences: golden numbers, shape, and that they keep their promise under constant peeking."""

from __future__ import annotations

import math

import numpy as np
import pytest

from apps.rollouts.confidence import (
    BOLD_AGAINST,
    BOLD_FOR_SHARES,
    BOLD_FOR_SIMILARITY,
    best_log_capital,
    confidence_sequence,
    excludes_at_most,
    fewest_samples,
    lower_bound,
)

RUNS = 1_500


@pytest.mark.parametrize(("alpha", "expected"), [(0.05, 149), (0.05 / 9, 258)])
def test_the_fewest_pairs_that_can_prove_a_similarity(alpha: float, expected: int) -> None:
    assert fewest_samples(1.0, 0.98, alpha, BOLD_FOR_SIMILARITY) == expected
    assert excludes_at_most(np.ones(expected), 0.98, alpha, BOLD_FOR_SIMILARITY)
    assert not excludes_at_most(np.ones(expected - 1), 0.98, alpha, BOLD_FOR_SIMILARITY)


@pytest.mark.parametrize(("margin", "expected"), [(0.01, 526), (0.03, 174), (0.05, 103)])
def test_the_fewest_requests_that_can_prove_a_margin_of_errors(margin: float, expected: int) -> None:
    bound = (1.0 - margin) / 2.0
    assert fewest_samples(0.5, bound, 0.05 / 9, BOLD_FOR_SHARES) == expected
    flawless = np.full(expected, 0.5)
    assert excludes_at_most(flawless, bound, 0.05 / 9, BOLD_FOR_SHARES)
    assert not excludes_at_most(flawless[1:], bound, 0.05 / 9, BOLD_FOR_SHARES)


def test_no_number_of_samples_shows_more_than_they_are() -> None:
    with pytest.raises(ValueError, match="no number of samples"):
        fewest_samples(0.98, 0.98, 0.05, BOLD_FOR_SIMILARITY)


def test_nothing_is_known_of_nothing() -> None:
    interval = confidence_sequence(np.array([]), 0.05, 0.9)
    assert (interval.low, interval.high, interval.samples) == (0.0, 1.0, 0)
    assert best_log_capital(np.array([]), 0.5, 0.9) == 0.0


def test_the_interval_narrows_with_every_sample_and_never_widens() -> None:
    x = np.random.default_rng(7).beta(30, 1, size=2_000)
    looks = [confidence_sequence(x[:n], 0.05, BOLD_FOR_SHARES) for n in (10, 100, 500, 2_000)]
    lows, highs = [look.low for look in looks], [look.high for look in looks]
    assert lows == sorted(lows)
    assert highs == sorted(highs, reverse=True)
    assert looks[-1].high - looks[-1].low < 0.02
    assert looks[-1].low < 30 / 31 < looks[-1].high


def test_the_bound_is_where_the_capital_reaches_one_over_alpha() -> None:
    x = np.random.default_rng(3).uniform(0.6, 1.0, size=300)
    low = lower_bound(x, 0.01, 0.9)
    step = 2e-5  # as exact as the bisection is
    assert best_log_capital(x, low - step, 0.9) >= math.log(100)
    assert best_log_capital(x, low + step, 0.9) < math.log(100)


def test_a_zero_ruins_the_bold_bet_and_not_the_proof() -> None:
    x = np.full(5_000, 0.9995)
    x[3] = 0.0
    assert not excludes_at_most(x[:300], 0.98, 0.05, BOLD_FOR_SIMILARITY)
    assert excludes_at_most(x, 0.98, 0.05, BOLD_FOR_SIMILARITY)


def _bernoulli(rng: np.random.Generator, mean: float, n: int) -> np.ndarray:
    return (rng.random(n) < mean).astype(float)


def _tight(rng: np.random.Generator, mean: float, n: int) -> np.ndarray:
    """Similarities: close to one value, with a rare bad one that brings the mean down to `mean`."""
    rare = (1.0 - mean) / 0.9
    return np.where(rng.random(n) < rare, 0.1, 1.0)


def _differences(rng: np.random.Generator, mean: float, n: int) -> np.ndarray:
    """(1 + baseline − candidate) / 2 of two error indicators whose difference makes the mean."""
    rise = 1.0 - 2.0 * mean
    return (1.0 + _bernoulli(rng, 0.02, n) - _bernoulli(rng, 0.02 + rise, n)) / 2.0


@pytest.mark.parametrize(
    ("draw", "bound", "bold"),
    [
        (_bernoulli, 0.95, BOLD_FOR_SHARES),
        (_tight, 0.98, BOLD_FOR_SIMILARITY),
        (_differences, 0.485, BOLD_FOR_SHARES),
        (lambda rng, mean, n: rng.beta(mean * 8, (1 - mean) * 8, n), 0.9, 0.5),
    ],
)
@pytest.mark.parametrize("side", ["pass", "fail"])
def test_looking_after_every_sample_raises_no_more_false_alarms_than_promised(draw, bound, bold, side) -> None:
    """The mean lies exactly on the bound, the hardest case; any look of 600 that errs counts."""
    alpha, n = 0.05, 600
    rng = np.random.default_rng(20_300)
    alarms = 0
    for _ in range(RUNS):
        x = draw(rng, bound, n)
        # the greatest capital over all looks: reaching 1/α at any of them is an alarm
        if side == "pass":
            alarms += excludes_at_most(x, bound, alpha, bold)
        else:
            alarms += excludes_at_most(1.0 - x, 1.0 - bound, alpha, BOLD_AGAINST, restarts=True)
    # three standard errors of the Monte Carlo
    assert alarms / RUNS <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / RUNS)


def test_a_real_difference_is_found() -> None:
    rng = np.random.default_rng(11)
    good = [np.clip(rng.normal(0.9994, 0.0004, 300), 0.0, 1.0) for _ in range(100)]
    assert all(excludes_at_most(x, 0.98, 0.05 / 9, BOLD_FOR_SIMILARITY) for x in good)
    heavy = [_tight(rng, 0.965, 3_000) for _ in range(100)]  # one answer in twenty-five is wrong
    assert sum(excludes_at_most(1.0 - x, 0.02, 0.05 / 9, BOLD_AGAINST, restarts=True) for x in heavy) >= 90


def test_a_long_good_past_does_not_shield_a_version_that_goes_bad() -> None:
    rng = np.random.default_rng(2)
    good = np.clip(rng.normal(0.9994, 0.0004, 20_000), 0.0, 1.0)
    bad = np.clip(rng.normal(0.965, 0.012, 400), 0.0, 1.0)
    before = confidence_sequence(good, 0.05 / 9, BOLD_FOR_SIMILARITY)
    after = confidence_sequence(np.concatenate([good, bad]), 0.05 / 9, BOLD_FOR_SIMILARITY)
    assert before.low > 0.98
    assert after.high < 0.98
    assert after.estimate > 0.98  # the mean of all says nothing of it
