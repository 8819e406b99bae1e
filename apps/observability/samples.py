# ruff: noqa: ARG001
"""GPU series as alerts read them. The store's own module takes this one's place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple


class Latest(NamedTuple):
    """The newest that is known of a GPU: values by metric, NaN where it wasn't measured."""

    time: datetime
    values: Mapping[str, float]
    simulated: bool


def latest(gpus: Sequence[int]) -> dict[int, Latest]:
    """Return the newest values of those GPUs that were heard in the last few minutes."""
    return {}


def gpus_heard(since: datetime) -> set[int]:
    """Return the numbers of the GPUs that have a sample since then."""
    return set()
