"""Counting failures: how often in a row something went wrong with an artifact, and when to try again."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from node.agent.backoff import Backoff
from node.agent.planner import Failure, Key


class Attempts:
    """Failures by engine key. `base_s` and `cap_s` bound the delays; the first try after a good time is immediate."""

    def __init__(self, base_s: float, cap_s: float, *, is_first_immediate: bool = False) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._is_first_immediate = is_first_immediate
        self._lock = threading.Lock()
        self._failures: dict[Key, Failure] = {}
        self._backoffs: dict[Key, Backoff] = {}

    def failures(self) -> Mapping[Key, Failure]:
        """What is counted now."""
        with self._lock:
            return dict(self._failures)

    def note(self, key: Key, code: str, reason: str, now_s: float, *, is_refusal: bool = True) -> None:
        """One more failure in a row."""
        with self._lock:
            backoff = self._backoffs.setdefault(key, Backoff(self._base_s, self._cap_s))
            is_first = key not in self._failures
            delay = backoff.next_s()
            if is_first and self._is_first_immediate:
                delay = 0.0
            self._failures[key] = Failure(code, reason, backoff.failures, now_s + delay, is_refusal)

    def forgive(self, key: Key) -> None:
        """It went well: count from nought again."""
        with self._lock:
            self._failures.pop(key, None)
            self._backoffs.pop(key, None)

    def forgive_all(self) -> None:
        """Something else is wanted: what failed before may be tried at once."""
        with self._lock:
            self._failures.clear()
            self._backoffs.clear()
