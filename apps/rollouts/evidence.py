"""From logged requests and compared pairs to columns, and from findings to rows."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar
from uuid import UUID

import numpy as np

from apps.models.models import RegisteredModel
from apps.observability import timeseries
from apps.observability.timeseries import ComparisonPair, EvidenceRequest
from apps.rollouts.analysis import analyse
from apps.rollouts.findings import Finding
from apps.rollouts.models import Evidence, Stage
from apps.rollouts.samples import Comparisons, Requests, StageData, baselines_each
from apps.rollouts.snapshot import Loaded
from apps.rollouts.strategy import AnalysingStage, CanaryStage, alpha_each

ROWS_MAX = 10_000  # of each kind; more narrows the intervals by less than a person can see
SERVER_ERROR = 500
Row = TypeVar("Row", ComparisonPair, EvidenceRequest)


def judge(loaded: Loaded, stage: Stage, now: datetime) -> list[Finding]:
    """Return what the samples of `stage`'s present attempt say, those of left-out nodes not among them."""
    spec = loaded.plan[stage.index]
    if not isinstance(spec, AnalysingStage) or stage.ready_at is None:
        raise ValueError(f"stage {stage.index} gathers no evidence yet")
    return analyse(spec, alpha_each(loaded.plan), gather(loaded, stage, spec, now))


def gather(loaded: Loaded, stage: Stage, spec: AnalysingStage, now: datetime) -> StageData:
    """Read the samples of a stage since its nodes became ready, in order of arrival.

    Arrival orders them for good: a later look sees the same samples and then the new ones, as its intervals demand.
    """
    nodes = _counted(loaded, stage)
    codes = {node: code for code, node in enumerate(nodes)}
    since = stage.ready_at
    if since is None:
        raise ValueError(f"stage {stage.index} is not ready: no evidence counts yet")
    rollout, model = loaded.rollout, loaded.rollout.model
    pairs = timeseries.comparison_pairs(rollout.pk, stage.index, stage.attempt, since, nodes)
    served: list[EvidenceRequest] = []
    if isinstance(spec, CanaryStage):
        versions = {rollout.version.number, *_previous_numbers(loaded)}
        served = timeseries.evidence_requests(model.slug, versions, nodes, since, now)
    mine = [row for row in served if row.version == rollout.version.number]
    theirs = [row for row in served if row.version != rollout.version.number]
    return StageData(
        comparisons=comparisons(thin(pairs), codes, [loaded.nodes[node].name for node in nodes]),
        baseline=requests(thin(theirs), codes),
        candidate=requests(thin(mine), codes),
        slo_latency_ms=slo_ms(model),
        baselines_each=baselines_each(spec.weight) if spec.weight else 1,
    )


def slo_ms(model: RegisteredModel) -> float:
    """Return the latency within which a request of the model counts as good."""
    return float(model.slo_latency_ms)


def _counted(loaded: Loaded, stage: Stage) -> list[UUID]:
    """Return the nodes whose samples count, by name: compared, selected and not left out."""
    return [
        row.node_id
        for row in loaded.participants
        if row.previous_artifact_id is not None
        and not row.excluded_reason
        and (stage.selected is None or str(row.node_id) in stage.selected)
    ]


def _previous_numbers(loaded: Loaded) -> set[int]:
    return {row.previous_artifact.version.number for row in loaded.participants if row.previous_artifact is not None}


def thin(rows: list[Row]) -> list[Row]:
    """Keep at most ROWS_MAX rows, chosen by a hash of their request id, which knows nothing of how they went."""
    keep_one_in = 1
    while len(rows) / keep_one_in > ROWS_MAX:
        keep_one_in *= 2
    if keep_one_in == 1:
        return rows
    return [row for row in rows if zlib.crc32(row.request_id.encode()) % keep_one_in == 0]


def comparisons(pairs: Sequence[ComparisonPair], codes: dict[UUID, int], nodes: Sequence[str]) -> Comparisons:
    """Return compared pairs as columns; node names by code."""
    return Comparisons(
        time_s=np.array([pair.received_at.timestamp() for pair in pairs], dtype=np.float64),
        node=np.array([codes[pair.node_id] for pair in pairs], dtype=np.int64),
        batch_size=np.array([pair.batch_size for pair in pairs], dtype=np.int64),
        similarity=np.array([_number(pair.similarity) for pair in pairs], dtype=np.float64),
        baseline_ms=np.array([pair.baseline_us / 1_000 for pair in pairs], dtype=np.float64),
        candidate_ms=np.array([pair.candidate_us / 1_000 for pair in pairs], dtype=np.float64),
        baseline_error=np.array([_failed(pair.baseline_status) for pair in pairs], dtype=np.bool_),
        candidate_error=np.array([_failed(pair.candidate_status) for pair in pairs], dtype=np.bool_),
        request_id=[pair.request_id for pair in pairs],
        sample=[pair.sample for pair in pairs],
        nodes=list(nodes),
        dropped=sum(pair.dropped_before for pair in pairs),
    )


def requests(rows: Sequence[EvidenceRequest], codes: dict[UUID, int]) -> Requests:
    """Return logged requests of one version as columns."""
    return Requests(
        time_s=np.array([row.received_at.timestamp() for row in rows], dtype=np.float64),
        node=np.array([codes[row.node_id] for row in rows], dtype=np.int64),
        batch_size=np.array([row.batch_size for row in rows], dtype=np.int64),
        latency_ms=np.array([row.total_us / 1_000 for row in rows], dtype=np.float64),
        error=np.array([_failed(row.status) for row in rows], dtype=np.bool_),
        entropy=np.array([_number(row.entropy) for row in rows], dtype=np.float64),
        score=np.array([_number(row.score) for row in rows], dtype=np.float64),
        predicted=[row.predicted_label for row in rows],
        label=[row.label for row in rows],
    )


def _failed(status: int) -> bool:
    """Tell whether the engine, not its caller, failed; 0 is no answer at all."""
    return status == 0 or status >= SERVER_ERROR


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def write(stage: Stage, findings: Sequence[Finding], now: datetime) -> None:
    """Replace the evidence of a stage's present attempt."""
    rows = [Evidence(stage=stage, attempt=stage.attempt, updated_at=now, **vars(finding)) for finding in findings]
    # a metric that errs now may have had two rows before
    Evidence.objects.filter(stage=stage, attempt=stage.attempt).exclude(metric__in=[r.metric for r in rows]).delete()
    if rows:
        columns = [name for name in vars(findings[0]) if name != "metric"]
        Evidence.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["stage", "attempt", "metric"],
            update_fields=[*columns, "updated_at"],
        )
