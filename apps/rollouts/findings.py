"""What analysis finds, and how it is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from apps.rollouts.confidence import Floats

# The values of models.Verdict, which lies behind Django
SUCCESSFUL, FAILED, INCONCLUSIVE, ERROR, NO_DATA = "successful", "failed", "inconclusive", "error", "no_data"


@dataclass(frozen=True)
class Finding:
    """What one metric says: a row of evidence. `unit` is that of `baseline` and `candidate`; see `detail["of"]`."""

    metric: str
    required: bool
    verdict: str
    unit: str = ""
    baseline: float | None = None
    candidate: float | None = None
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    margin: float | None = None
    better: str = "higher"
    samples: int = 0
    needed: int = 0
    sentence: str = ""
    detail: dict[str, Any] = field(default_factory=dict)


def points(share: float) -> str:
    """Say a share's change in percentage points, with its sign."""
    return f"{round(100.0 * share, 1) + 0.0:+.1f}".replace("-", "−")  # + 0.0: no «−0.0»


def mean(x: Floats) -> float | None:
    """Return the mean of `x` (n,), None of nothing."""
    return float(x.mean()) if len(x) else None


def quantile(x: Floats, q: float = 0.99) -> float | None:
    """Return a quantile of `x` (n,), rounded for people; None of nothing."""
    return round(float(np.quantile(x, q)), 3) if len(x) else None
