"""Series as GPUs make them: a daily cycle and noise that remembers, from a seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from apps.observability import detector

DAY = detector.DAY
FIRST = 29_000_000 - 29_000_000 % DAY  # a Unix minute at 00:00 UTC
Floats = NDArray[np.float32]


def noise(minutes: int, series: int = 1, *, memory: float = 0.9, sigma: float = 1.0, seed: int = 0) -> Floats:
    """First-order autoregressive noise, (minutes, series), of standard deviation `sigma`."""
    random = np.random.default_rng(seed)
    found = random.standard_normal((minutes, series)) * sigma
    found[1:] *= np.sqrt(1 - memory**2)
    for minute in range(1, minutes):
        found[minute] += memory * found[minute - 1]
    return found.astype(np.float32)


def cycle(minutes: int, *, base: float = 62.0, swing: float = 3.0, first: int = FIRST) -> Floats:
    """The daily cycle alone, (minutes,)."""
    return (base + swing * np.sin(2 * np.pi * ((first + np.arange(minutes)) % DAY) / DAY)).astype(np.float32)


def temperatures(days: int, series: int = 1, *, seed: int = 0, first: int = FIRST) -> Floats:
    """62 ± 3 °C over the day and one degree of noise, (minutes, series)."""
    minutes = days * DAY
    return cycle(minutes, first=first)[:, None] + noise(minutes, series, seed=seed)


def warm(history: Floats, *, floor: float = 0.5, first: int = FIRST) -> detector.State:
    """The state after this history."""
    state = detector.State.empty(history.shape[1], floor)
    detector.warm_up(state, history, first)
    return state


def run(state: detector.State, values: Floats, first: int) -> tuple[Floats, NDArray[np.uint8], list[detector.Shift]]:
    """Step through (minutes, series); return z and kind of each, and every shift."""
    z, kinds, shifts = [], [], []
    for index, row in enumerate(values):
        scores = detector.step(state, first + index, row)
        z.append(scores.z)
        kinds.append(scores.kind)
        shifts += scores.shifts
    return np.stack(z), np.stack(kinds), shifts
