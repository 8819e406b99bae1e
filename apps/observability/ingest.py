"""What a batch puts into the series, inside the transaction that moves its cursor."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from django.conf import settings

from apps.fleet.models import Gpu, Node
from apps.observability import packed, rows, store
from apps.observability.models import DirtyMinute
from apps.observability.packed import Copyable
from apps.observability.timeseries import COMPARISON_TYPES, INFERENCE_TYPES
from protocol.telemetry_pb2 import TelemetryBatch

AHEAD = timedelta(minutes=10)  # a row further in the future than this is a broken clock's
OFFSET_MAX_S = 1e9  # a clock that is 30 years off is as good as none; NaN is none either


def store_rows(node: Node, batch: TelemetryBatch, now: datetime) -> int:
    """Append the batch's good rows; return how many were dropped."""
    window = rows.Window(
        node_id=node.pk,
        team_id=node.team_id,
        received_at=now,
        offset_us=round(batch.clock_offset_s * 1e6) if abs(batch.clock_offset_s) <= OFFSET_MAX_S else 0,
        oldest=now - timedelta(hours=settings.FARRIER.raw_retention_h),
        newest=now + AHEAD,
    )
    requests = rows.inference(batch.inference, window)
    pairs = rows.comparisons(batch.comparison, window)
    for series, types, converted in (
        ("inference_log", INFERENCE_TYPES, requests),
        ("comparison", COMPARISON_TYPES, pairs),
    ):
        store.ensure_days(series, {row[0].astimezone(UTC).date() for row in converted})
        store.copy_rows(series, types, converted)
    gpus = packed.gpu_samples(batch.gpu, _own_gpus(node, batch), window)
    engines = packed.engine_samples(batch.engine, window)
    _copy("gpu_sample", gpus)
    _copy("engine_sample", engines)
    _mark_dirty({row[0].replace(second=0, microsecond=0) for row in requests}, gpus)
    dropped = len(batch.inference) + len(batch.comparison) - len(requests) - len(pairs)
    return dropped + gpus.dropped + engines.dropped


def _own_gpus(node: Node, batch: TelemetryBatch) -> dict[str, int]:
    """The numbers of the node's GPUs that the batch names, by UUID: it writes for no others."""
    named = {uuid for block in batch.gpu for uuid in block.gpus}
    if not named:
        return {}
    return dict(Gpu.objects.filter(node=node, uuid__in=named).values_list("uuid", "number"))


def _copy(series: str, samples: Copyable) -> None:
    if samples.rows:
        store.ensure_days(series, samples.days)
        store.copy_bytes(series, samples.columns, samples.data)


def _mark_dirty(request_minutes: Iterable[datetime], gpus: Copyable) -> None:
    """Say which minutes have to be rolled up (again)."""
    marks = [DirtyMinute(series="inference_log", minute=minute) for minute in sorted(request_minutes)]
    marks += [DirtyMinute(series="gpu_sample", minute=minute, gpus=numbers) for minute, numbers in gpus.minutes.items()]
    if marks:
        DirtyMinute.objects.bulk_create(marks)
