"""The questions asked of requests and pairs: one file of sql/ a query, a function of the same name, typed rows.

The same calls give the same rows on TimescaleDB and on plain daily partitions. Times are node time plus the node's
clock offset; `received_at` is ours, one value a batch. «Error» means HTTP status 500 and above: what the engine, not
the caller, did wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from apps.observability import store
from apps.observability.models import Rollup
from apps.observability.rows import EPOCH

INFERENCE_TYPES = {
    "time": "timestamptz",
    "received_at": "timestamptz",
    "node_id": "uuid",
    "team_id": "uuid",
    "request_id": "text",
    "model": "text",
    "version": "int4",
    "digest": "bytea",
    "deployment_id": "uuid",
    "status": "int4",
    "error_code": "text",
    "user_key": "bytea",
    "session_id": "text",
    "input_sha256": "bytea",
    "input_items": "int4",
    "input_tokens": "int4",
    "batch_size": "int4",
    "queue_us": "int4",
    "preprocess_us": "int4",
    "compute_us": "int4",
    "postprocess_us": "int4",
    "total_us": "int4",
    "entropy": "float4",
    "score": "float4",
    "predicted_label": "text",
}
COMPARISON_TYPES = {
    "time": "timestamptz",
    "received_at": "timestamptz",
    "node_id": "uuid",
    "team_id": "uuid",
    "request_id": "text",
    "model": "text",
    "rollout_id": "uuid",
    "stage": "int4",
    "attempt": "int4",
    "deployment_id": "uuid",
    "baseline_version": "int4",
    "candidate_version": "int4",
    "similarity": "float4",
    "baseline_us": "int4",
    "candidate_us": "int4",
    "baseline_status": "int4",
    "candidate_status": "int4",
    "batch_size": "int4",
    "sample": "text",
    "dropped_before": "int4",
}


class EvidenceRequest(NamedTuple):
    """One request as evidence. `label` is the true one, None without feedback; entropy in bits, latency in µs."""

    received_at: datetime
    time: datetime
    request_id: str
    version: int
    node_id: UUID
    batch_size: int
    status: int
    error_code: str
    total_us: int
    entropy: float | None
    score: float | None
    predicted_label: str
    label: str | None


class ComparisonPair(NamedTuple):
    """One mirrored request through both versions. `similarity` is a cosine in [0, 1], None where either side failed."""

    received_at: datetime
    time: datetime
    request_id: str
    node_id: UUID
    batch_size: int
    similarity: float | None
    baseline_us: int
    candidate_us: int
    baseline_status: int
    candidate_status: int
    sample: str
    dropped_before: int


class MinuteCount(NamedTuple):
    """Requests of one version in one minute: all, with errors, and good (no error and within the SLO's latency)."""

    minute: datetime
    version: int
    requests: int
    errors: int
    good: int


class RequestMinute(NamedTuple):
    """What one version answered on one node in the minute that begins at `time`; slow: longer than 500 ms."""

    time: datetime
    node_id: UUID
    team_id: UUID
    model: str
    version: int
    requests: int
    errors: int
    slow_500ms: int
    latency_us_sum: int


class TrafficBucket(NamedTuple):
    """What one version answered in the bucket that begins at `start`; latencies in µs."""

    start: datetime
    version: int
    requests: int
    errors: int
    p50_us: int
    p99_us: int


class VersionTotal(NamedTuple):
    """What one version answered on one node."""

    version: int
    node_id: UUID
    requests: int
    errors: int
    first: datetime
    last: datetime
    p50_us: int
    p99_us: int


class Labelled(NamedTuple):
    """A prediction and what was true; `score` is the predicted label's probability."""

    version: int
    predicted_label: str
    score: float
    label: str


class LoggedRequest(NamedTuple):
    """One row of the inference log, for a person."""

    time: datetime
    request_id: str
    model: str
    version: int
    node_id: UUID
    digest: str
    deployment_id: UUID
    status: int
    error_code: str
    batch_size: int
    queue_us: int
    preprocess_us: int
    compute_us: int
    postprocess_us: int
    total_us: int
    entropy: float | None
    score: float | None
    predicted_label: str


R = TypeVar("R", bound=tuple[Any, ...])


def evidence_requests(
    model: str, versions: Iterable[int], node_ids: Iterable[UUID], since: datetime, until: datetime
) -> list[EvidenceRequest]:
    """Return the requests that `versions` of a model (its slug) answered on these nodes in [since, until).

    In order of arrival: a later look sees the same rows in the same order, then the new ones.
    """
    return _rows(
        "evidence_requests",
        EvidenceRequest,
        model=model,
        versions=list(versions),
        node_ids=list(node_ids),
        since=since,
        until=until,
    )


def comparison_pairs(
    rollout_id: UUID,
    stage: int,
    attempt: int,
    since: datetime | None = None,
    node_ids: Iterable[UUID] | None = None,
) -> list[ComparisonPair]:
    """Return the compared pairs of one attempt of a stage (its index), in order of arrival.

    `since` spares old partitions a look: pass the attempt's start where it is known. Any node may name any rollout in
    its rows, so who counts them says by `node_ids` whose; None: everybody's.
    """
    return _rows(
        "comparison_pairs",
        ComparisonPair,
        rollout_id=rollout_id,
        stage=stage,
        attempt=attempt,
        since=_or_ever(since),
        node_ids=None if node_ids is None else list(node_ids),
    )


def worst_pairs(
    rollout_id: UUID, stage: int, attempt: int, limit: int, since: datetime | None = None
) -> list[ComparisonPair]:
    """Return the `limit` least similar pairs of one attempt of a stage, worst first; failed ones are not among them."""
    return _rows(
        "worst_pairs",
        ComparisonPair,
        rollout_id=rollout_id,
        stage=stage,
        attempt=attempt,
        limit=limit,
        since=_or_ever(since),
    )


def minute_counts(
    model: str, node_ids: Iterable[UUID], since: datetime, until: datetime, slo_ms: float
) -> list[MinuteCount]:
    """Return requests per version and minute in [since, until), by minute; minutes without requests are absent."""
    return _rows(
        "minute_counts",
        MinuteCount,
        model=model,
        node_ids=list(node_ids),
        since=since,
        until=until,
        slo_us=round(slo_ms * 1_000),
    )


def traffic(
    model: str,
    versions: Iterable[int],
    team_ids: Iterable[UUID],
    since: datetime,
    until: datetime,
    bucket: timedelta,
) -> list[TrafficBucket]:
    """Return requests, errors and latency per version and bucket in [since, until), by time; empty ones are absent."""
    return _rows(
        "traffic",
        TrafficBucket,
        model=model,
        versions=list(versions),
        team_ids=list(team_ids),
        since=since,
        until=until,
        bucket=bucket,
    )


def requests_by_version(model: str, versions: Iterable[int], since: datetime) -> list[VersionTotal]:
    """Return what each version answered on each node since then: the answer to «what served, where?»."""
    return _rows("requests_by_version", VersionTotal, model=model, versions=list(versions), since=since)


def labelled(model: str, versions: Iterable[int], since: datetime) -> list[Labelled]:
    """Return the predictions since then whose true label is known, in order of arrival: what AUC is made of."""
    return _rows("labelled", Labelled, model=model, versions=list(versions), since=since)


def request_minutes(
    model: str | None,
    node_ids: Iterable[UUID] | None,
    since: datetime,
    until: datetime,
    *,
    team_ids: Iterable[UUID] | None = None,
) -> list[RequestMinute]:
    """Return requests by minute, node, model and version in [since, until), by time; None stands for all.

    Read from the rollup, what it doesn't have yet from the log itself.
    """
    rolled = Rollup.objects.filter(series="inference_minute").values_list("rolled_until", flat=True).first()
    return _rows(
        "request_minutes",
        RequestMinute,
        model=model,
        node_ids=None if node_ids is None else list(node_ids),
        team_ids=None if team_ids is None else list(team_ids),
        since=since,
        until=until,
        rolled=rolled or EPOCH,
    )


def request(request_id: str, team_ids: Iterable[UUID]) -> list[LoggedRequest]:
    """Return what the log has on one request id, for the given teams; a client may have repeated an id."""
    return _rows("request", LoggedRequest, request_id=request_id, team_ids=list(team_ids))


def _or_ever(since: datetime | None) -> Any:
    return since if since is not None else "-infinity"


def _rows(name: str, kind: type[R], **parameters: Any) -> list[R]:
    return store.fetch(store.sql(name), kind, **parameters)
