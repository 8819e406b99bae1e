"""Waiting for conditions, never for time: every wait has a deadline and a sentence."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LOOK_EVERY_S = 0.1


class WaitedInVain(AssertionError):
    """A condition did not come true in time."""


def until(what: str, look: Callable[[], T], timeout_s: float) -> T:
    """Return the first true value of `look`; raises WaitedInVain with `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise WaitedInVain(f"waited {timeout_s:g} s in vain: {what}")
        time.sleep(LOOK_EVERY_S)
