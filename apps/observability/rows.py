"""From protobuf rows to table rows; pure. What can't be stored is left out, and nothing a node sends can jam ingest."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any
from uuid import UUID

from protocol.telemetry_pb2 import ComparisonRow, InferenceRow

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INT4_MAX = (1 << 31) - 1
SAMPLE_CHARS = 200
_SLUG = re.compile(r"[a-z0-9-]{1,63}")
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Window:
    """Whose rows these are, and between which moments (server clock) they may lie."""

    node_id: UUID
    team_id: UUID
    received_at: datetime
    offset_us: int  # server minus node
    oldest: datetime
    newest: datetime

    def bounds_us(self) -> tuple[int, int]:
        """The window on the node's clock, in Unix microseconds."""
        return _unix_us(self.oldest) - self.offset_us, _unix_us(self.newest) - self.offset_us


def inference(messages: Iterable[InferenceRow], window: Window) -> list[Row]:
    """Return the rows of inference_log, in the order of timeseries.INFERENCE_TYPES."""
    low_us, high_us = window.bounds_us()
    ids = _Ids()
    converted: list[Row] = []
    for m in messages:
        stages_us = (m.queue_us, m.preprocess_us, m.compute_us, m.postprocess_us, m.total_us)
        numbers = (m.input_items, m.input_tokens, m.batch_size, *stages_us)
        deployment = ids.get(m.deployment)
        if (
            not low_us <= m.time_unix_us <= high_us
            or deployment is None
            or not _SLUG.fullmatch(m.model)
            or len(m.digest) != 64
            or max(*numbers, m.version, m.status) > INT4_MAX
        ):
            continue
        converted.append(
            (
                EPOCH + timedelta(microseconds=m.time_unix_us + window.offset_us),
                window.received_at,
                window.node_id,
                window.team_id,
                _text(m.request_id, 64),
                m.model,
                m.version,
                m.digest,
                deployment,
                m.status,
                _text(m.error_code, 63),
                m.user_key[:16],
                _text(m.session_id, 128),
                m.input_sha256[:32],
                *numbers,
                m.entropy if isfinite(m.entropy) else None,
                m.score if isfinite(m.score) else None,
                _text(m.predicted_label, 120),
            )
        )
    return converted


def comparisons(messages: Iterable[ComparisonRow], window: Window) -> list[Row]:
    """Return the rows of comparison, in the order of timeseries.COMPARISON_TYPES."""
    low_us, high_us = window.bounds_us()
    ids = _Ids()
    converted: list[Row] = []
    for m in messages:
        versions = (m.baseline_version, m.candidate_version)
        numbers = (m.baseline_us, m.candidate_us, m.baseline_status, m.candidate_status, m.batch_size)
        deployment, rollout = ids.get(m.deployment), ids.get(m.rollout)
        if (
            not low_us <= m.time_unix_us <= high_us
            or deployment is None
            or rollout is None
            or not _SLUG.fullmatch(m.model)
            or max(*versions, *numbers, m.stage, m.attempt, m.dropped_before) > INT4_MAX
        ):
            continue
        converted.append(
            (
                EPOCH + timedelta(microseconds=m.time_unix_us + window.offset_us),
                window.received_at,
                window.node_id,
                window.team_id,
                _text(m.request_id, 64),
                m.model,
                rollout,
                m.stage,
                m.attempt,
                deployment,
                *versions,
                # rounding takes a cosine of like vectors a hair above one
                min(max(m.similarity, 0.0), 1.0) if isfinite(m.similarity) else None,
                *numbers,
                _text(m.sample, SAMPLE_CHARS),
                m.dropped_before,
            )
        )
    return converted


class _Ids:
    """Parses UUIDs, each spelling once: a batch names the same few again and again."""

    def __init__(self) -> None:
        self._known: dict[str, UUID | None] = {}

    def get(self, text: str) -> UUID | None:
        """Return the UUID, None for a text that is none."""
        if text not in self._known:
            try:
                self._known[text] = UUID(text)
            except ValueError:
                self._known[text] = None
        return self._known[text]


def _text(value: str, limit: int) -> str:
    """Cut to `limit` characters; PostgreSQL holds no NUL in a text."""
    return value[:limit].replace("\x00", "") if value else ""


def _unix_us(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)
