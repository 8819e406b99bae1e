"""Named places where a test may stop a process dead.

`FARRIER_FAILPOINTS=name,name:3` makes the process kill itself with SIGKILL when it passes `name` (or passes it for the
third time). Only tests set it; in production the variable is absent and `pass_by` costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal


def _parse(spec: str) -> dict[str, int]:
    armed: dict[str, int] = {}
    for part in filter(None, spec.split(",")):
        name, _, count = part.partition(":")
        armed[name.strip()] = int(count or "1")
    return armed


_armed = _parse(os.environ.get("FARRIER_FAILPOINTS", ""))


def pass_by(name: str) -> None:
    """Die here if a test has armed this failpoint; else do nothing."""
    left = _armed.get(name)
    if left is None:
        return
    if left > 1:
        _armed[name] = left - 1
        return
    os.kill(os.getpid(), signal.SIGKILL)
