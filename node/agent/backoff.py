"""Waiting between tries: exponential, capped, jittered, so that a fleet never knocks in step."""

from __future__ import annotations

import random


class Backoff:
    """Delays that double up to a cap; each is drawn from its upper half, so that peers spread out."""

    def __init__(self, base_s: float = 1.0, cap_s: float = 60.0, rng: random.Random | None = None) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._rng = rng or random.Random()  # noqa: S311 (spreads load, guards nothing)
        self.failures = 0

    def next_s(self, at_least_s: float | None = None) -> float:
        """Return the delay before the next try, in seconds, and count one more failure."""
        ceiling = min(self._cap_s, self._base_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return max(self._rng.uniform(ceiling / 2, ceiling), at_least_s or 0.0)

    def reset(self) -> None:
        """Start from the base again: something succeeded."""
        self.failures = 0
