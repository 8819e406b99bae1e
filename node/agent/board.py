"""What the node would report now: written by the loop, sent by the link to the control plane."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from protocol.messages import ConditionReport, DeploymentReport, Refusal

log = logging.getLogger(__name__)

MAX_REFUSALS = 50
SAY_AGAIN = timedelta(minutes=10)  # a refusal that recurs is told again after this


class Board:
    """Reports, conditions and refusals, shared between threads. `changed` is called when there is news."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.changed = changed
        self._lock = threading.Lock()
        self._deployments: tuple[DeploymentReport, ...] = ()
        self._conditions: tuple[ConditionReport, ...] = ()
        self._refusals: OrderedDict[tuple[str, int | None, str | None], Refusal] = OrderedDict()
        self._told: dict[tuple[str, int | None, str | None], datetime] = {}

    def publish(self, deployments: Sequence[DeploymentReport], conditions: Sequence[ConditionReport]) -> None:
        """Replace what is reported; a change of a state or a condition is told soon."""
        with self._lock:
            before = (self._deployments, _gist(self._conditions))
            self._deployments, self._conditions = tuple(deployments), tuple(conditions)
            is_news = before != (self._deployments, _gist(self._conditions))
        if is_news:
            self.changed()

    def refuse(
        self, code: str, reason: str, *, at: datetime, sequence: int | None = None, digest: str | None = None
    ) -> None:
        """Note that something was not accepted; the same again within ten minutes is one refusal."""
        key = (code, sequence, digest)
        with self._lock:
            told = self._told.get(key)
            if key in self._refusals or (told is not None and at - told < SAY_AGAIN):
                return
            refusal = Refusal(code=code, reason=reason[:1_000], at=at, sequence=sequence, digest=digest)
            self._refusals[key] = refusal
            while len(self._refusals) > MAX_REFUSALS:
                self._refusals.popitem(last=False)
        log.error("refused (%s): %s", code, reason)
        self.changed()

    def read(self) -> tuple[list[DeploymentReport], list[ConditionReport], list[Refusal]]:
        """What is to be told."""
        with self._lock:
            return list(self._deployments), list(self._conditions), list(self._refusals.values())

    def told(self, refusals: Sequence[Refusal]) -> None:
        """These refusals have arrived."""
        with self._lock:
            for refusal in refusals:
                key = (refusal.code, refusal.sequence, refusal.digest)
                if self._refusals.get(key) is refusal:
                    del self._refusals[key]
                    self._told[key] = refusal.at


def _gist(conditions: Sequence[ConditionReport]) -> list[tuple[str, str, str]]:
    """Conditions without their messages, whose figures move all the time."""
    return [(condition.type, condition.status, condition.reason) for condition in conditions]
