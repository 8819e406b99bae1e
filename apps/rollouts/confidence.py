"""Intervals for a mean that stay valid however often one looks: betting confidence sequences.

A gambler bets against «the mean is at most m» on every sample x in [0, 1]. Betting the constant fraction c of what is
allowed multiplies the capital by 1 − c + c·x/m, a fair or losing game if the hypothesis is true; so is the average
over several c. By Ville's inequality the capital ever reaches 1/α with a chance of at most α, at any number of looks:
the m that it did reach 1/α against are excluded for good. The capital falls as m grows, so what remains is an interval.

The upper end, which decides failures, restarts: a share of the capital begins anew every RESTART samples, so that a
version which goes bad after an hour is not shielded by its good past. The sum is still a fair or losing game.

Waudby-Smith & Ramdas, «Estimating means of bounded random variables by betting», JRSS B 86 (2024), arXiv 2010.09686
(averaging over bets: their «diversified Kelly»); Ville (1939); Cover, «Universal portfolios» (1991); for restarts see
Shin, Ramdas & Rinaldo, «E-detectors», arXiv 2203.03532.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Bets beside the boldest one (1.0): what growth is best at depends on how much the samples scatter.
_CAUTIOUS_BETS = np.array([0.01, 0.03, 0.07, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95])
_BETS = np.append(_CAUTIOUS_BETS, 1.0)

# The share of the capital that bets boldly. Similarities lie close to their best value and hardly ever at 0, which
# would ruin a bold bet, so nearly all goes there; shares of good requests do have zeros.
BOLD_FOR_SIMILARITY = 0.986
BOLD_FOR_SHARES = 0.9
BOLD_AGAINST = 0.5  # on the failing side nothing is known beforehand

RESTART = 250  # samples between restarts of the failing side
_RUIN = -700.0  # the log of nothing: finite, so that what restarts later can be told from what was ruined before
_BISECTIONS = 16  # ends are exact to 0.00002, on the cautious side


@dataclass(frozen=True)
class Interval:
    """What is known of a mean: each end is wrong, ever, with a chance of at most α."""

    estimate: float
    low: float
    high: float
    samples: int


def best_log_capital(x: Floats, mean: float, bold: float, *, restarts: bool = False) -> float:
    """Return the greatest log capital ever held while betting on `x` (n,) against «the mean is at most `mean`».

    `x` in time order, in [0, 1]; 0 < mean ≤ 1. An empty `x` gives 0. With `restarts` the hypothesis is that the mean is
    at most `mean` all the time.
    """
    if len(x) == 0:
        return 0.0
    with np.errstate(divide="ignore"):  # a bold bet loses all at x = 0
        steps = np.maximum(_RUIN, np.log((1.0 - _BETS) + _BETS * (x[:, None] / mean)))  # (n, bets)
    logs = np.cumsum(steps, axis=0) + np.log(_shares(bold))
    if restarts:
        logs += _log_of_starts(logs - np.log(_shares(bold)))
    top = logs.max()
    # what is e^-700 of the greatest doesn't count: one shift for all looks is enough
    return max(0.0, float(top + np.log(np.exp(logs - top).sum(axis=1).max())))


def _log_of_starts(gained: Floats) -> Floats:
    """Return what the starts so far add to a bet's log capital, (n, bets); `gained` (n, bets) since the first start.

    Start j, at sample RESTART · j, has the share 1 / ((j + 1)(j + 2)) of the capital; all shares sum to 1.
    """
    starts = np.arange(0, len(gained), RESTART)
    before = np.vstack([np.zeros((1, gained.shape[1])), gained[starts[1:] - 1]])  # (starts, bets)
    index = np.arange(len(starts))
    weights = -np.log((index + 1.0) * (index + 2.0))
    so_far = np.logaddexp.accumulate(weights[:, None] - before, axis=0)
    return so_far[np.arange(len(gained)) // RESTART]


def _shares(bold: float) -> Floats:
    """Return the shares of the capital by bet, (bets,), summing to 1."""
    shares = np.full(len(_BETS), (1.0 - bold) / len(_CAUTIOUS_BETS))
    shares[-1] = bold
    return shares


def excludes_at_most(x: Floats, mean: float, alpha: float, bold: float, *, restarts: bool = False) -> bool:
    """Tell whether `x` has ever shown, at level `alpha`, that its mean lies above `mean`."""
    return best_log_capital(x, mean, bold, restarts=restarts) >= math.log(1.0 / alpha)


def lower_bound(x: Floats, alpha: float, bold: float, *, restarts: bool = False) -> float:
    """Return the greatest mean that `x` (n,) excludes as too low; 0 when it excludes none."""
    if len(x) == 0 or not excludes_at_most(x, 1e-9, alpha, bold, restarts=restarts):
        return 0.0
    low, high = 1e-9, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        if excludes_at_most(x, middle, alpha, bold, restarts=restarts):
            low = middle
        else:
            high = middle
    return low


def confidence_sequence(x: Floats, alpha: float, bold: float, alpha_high: float | None = None) -> Interval:
    """Return the interval for the mean of `x` (n,), samples in time order in [0, 1].

    Each end errs with a chance of at most `alpha` over all looks, the upper one of `alpha_high` where given. The ends
    are kept once reached, so where the samples drift down the upper end passes the lower one.
    """
    high = 1.0 - lower_bound(1.0 - x, alpha_high or alpha, BOLD_AGAINST, restarts=True)
    return Interval(float(x.mean()) if len(x) else 0.0, lower_bound(x, alpha, bold), high, len(x))


def fewest_samples(best: float, bound: float, alpha: float, bold: float) -> int:
    """Return how many samples, all of them `best`, it takes to show that the mean lies above `bound`.

    Fewer can't ever show it. 149 for a similarity of at least 0.98 at α = 0.05, 258 when α is split nine ways.
    Raises ValueError when `best` is not above `bound`: no number would do.
    """
    if not 0.0 < bound < best <= 1.0:
        raise ValueError(f"no number of samples at {best} shows a mean above {bound}")
    growth = np.log((1.0 - _BETS) + _BETS * (best / bound))  # (bets,), a sample's
    shares = np.log(_shares(bold))
    target = math.log(1.0 / alpha)

    def reached(count: int) -> bool:
        logs = shares + count * growth
        return bool(np.logaddexp.reduce(logs) >= target)

    high = 1
    while not reached(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
