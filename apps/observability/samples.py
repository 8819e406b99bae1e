"""GPU series as alerts read them. The store's own module takes this one's place."""

# ruff: noqa: ARG001
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True)
class Latest:
    time: datetime
    values: Mapping[str, float]


@dataclass(frozen=True)
class RequestMinute:
    time: datetime
    model: str
    node_id: UUID
    version: int
    requests: int
    errors: int
    slow_500ms: int
    latency_us_sum: float


def latest(gpus: Sequence[int]) -> dict[int, Latest]:
    return {}


def gpus_heard(since: datetime) -> set[int]:
    return set()


def request_minutes(
    model: str | None,
    node_ids: Sequence[UUID] | None,
    since: datetime,
    until: datetime,
) -> list[RequestMinute]:
    return []
