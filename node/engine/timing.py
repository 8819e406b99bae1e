"""Named steps of a start-up, each with its time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepTimer:
    """Collects `{"name", "ms"}` in the order in which the steps ended."""

    def __init__(self) -> None:
        self.steps: list[dict[str, str | float]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time the body of a `with`; a step that fails is left out."""
        started_s = time.perf_counter()
        yield
        self.steps.append({"name": name, "ms": round((time.perf_counter() - started_s) * 1000, 3)})
