# ruff: noqa: ARG001
"""The detector's findings as alerts read them. The detector's own module takes this one's place."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """What is wrong with a value."""

    NONE = 0
    SPIKE = 1
    TREND_BREAK = 2
    LEVEL_SHIFT = 3
    NO_DATA = 4


class Finding(NamedTuple):
    """Something unusual about a GPU (its number) in a closed minute; `observed` and `z` are None without a value."""

    gpu: int
    metric: str
    minute: datetime
    observed: float | None
    expected: float
    scale: float
    z: float | None
    kind: Kind


@dataclass(frozen=True)
class Findings:
    """The newest judgment."""

    minute: datetime | None
    rows: list[Finding]
    learning: set[int]
    silent: set[int]


def findings(now: datetime) -> Findings:
    """Return what is unusual in the newest minute that was judged."""
    return Findings(None, [], set(), set())
