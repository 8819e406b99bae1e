"""Every write to what is measured: telemetry batches, feedback, the upkeep of the series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction

from apps.access.actors import Actor
from apps.access.models import Role, Team
from apps.access.services import require_role
from apps.audit.models import RestoreEpoch
from apps.fleet.models import Node
from apps.lib.errors import Conflict, DomainError, Forbidden
from apps.observability import ingest, rollups, store
from apps.observability.models import Feedback, TelemetryCursor
from protocol import failpoints
from protocol.messages import TelemetryAck
from protocol.telemetry_pb2 import TelemetryBatch

SPOOL_LIFE = timedelta(hours=24)  # a node keeps what it can't deliver for that long
CURSOR_LIFE = timedelta(days=30)
COLUMNS_AFTER = timedelta(days=3)  # late rows have come by then


class SequenceGap(Conflict):
    """A batch came before the one it follows; `stored_seq` in the problem document says where to go on."""

    def __init__(self, seq: int, stored_seq: int) -> None:
        super().__init__(
            "sequence_gap",
            f"Batch {seq} does not follow batch {stored_seq}, the last one stored; send {stored_seq + 1} next.",
        )
        self.extra = {"stored_seq": stored_seq}


def store_batch(node: Node, batch: TelemetryBatch, *, now: datetime) -> TelemetryAck:
    """Store a batch and advance the node's cursor in one transaction, so that an acknowledged row is never lost.

    A repeated batch is acknowledged again and not stored. Rows that are malformed, more than ten minutes ahead or
    older than the retention are dropped and counted: refusing them would jam the node's spool for good. A gap is taken
    once after a restore from backup: the batches in it were acknowledged before, and their rows are gone.
    Raises Forbidden(wrong_node), DomainError(bad_batch), SequenceGap.
    """
    boot_id = _boot_id(node, batch)
    with transaction.atomic():
        cursor = _lock_cursor(node, boot_id, batch.seq, now)
        if batch.seq <= cursor.seq:
            return TelemetryAck(boot_id=boot_id, seq=cursor.seq)
        if batch.seq != cursor.seq + 1 and not _restored_since(cursor.updated_at):
            raise SequenceGap(batch.seq, cursor.seq)
        dropped = ingest.store_rows(node, batch, now)
        cursor.seq, cursor.updated_at = batch.seq, now
        cursor.dropped_rows += dropped
        cursor.save(update_fields=["seq", "dropped_rows", "updated_at"])
        failpoints.pass_by("telemetry.before_commit")
    failpoints.pass_by("telemetry.before_ack")
    return TelemetryAck(boot_id=boot_id, seq=batch.seq, dropped_rows=dropped)


def _boot_id(node: Node, batch: TelemetryBatch) -> UUID:
    if batch.node != str(node.pk):
        raise Forbidden("wrong_node", f"The batch is node {batch.node}'s; {node} may send its own only.")
    try:
        boot_id = UUID(batch.boot_id)
    except ValueError:
        raise DomainError("bad_batch", f"«{batch.boot_id[:40]}» is no boot id; it must be a UUID.") from None
    if not 1 <= batch.seq < 1 << 63:
        raise DomainError("bad_batch", f"The batch has the number {batch.seq}; the first of a boot is 1.")
    return boot_id


def _lock_cursor(node: Node, boot_id: UUID, seq: int, now: datetime) -> TelemetryCursor:
    """Return the cursor, locked; a new one for the first batch of a boot. Raises SequenceGap."""
    rows_of_boot = TelemetryCursor.objects.select_for_update().filter(node=node, boot_id=boot_id)
    found = rows_of_boot.first()
    if found is not None:
        return found
    if seq != 1 and not _restored_since(now - SPOOL_LIFE):
        raise SequenceGap(seq, 0)
    # as old as can be: what a restore took away counts as missing for this boot
    fresh = TelemetryCursor(node=node, boot_id=boot_id, updated_at=now - SPOOL_LIFE)
    TelemetryCursor.objects.bulk_create([fresh], ignore_conflicts=True)
    return rows_of_boot.get()


def _restored_since(moment: datetime) -> bool:
    return RestoreEpoch.objects.filter(at__gt=moment).exists()


def record_feedback(*, team: Team, labels: Iterable[Mapping[str, str]], actor: Actor, now: datetime) -> int:
    """Store the true labels of requests, `{request_id, label}` each; a later label replaces an earlier one.

    A label may come before its request does. Returns how many were stored. Raises Forbidden.
    """
    require_role(actor.user, team, Role.OPERATOR)
    newest = {item["request_id"]: item["label"] for item in labels}  # one row may not be upserted twice
    Feedback.objects.bulk_create(
        [Feedback(team=team, request_id=key, label=label, at=now) for key, label in newest.items()],
        update_conflicts=True,
        unique_fields=["team", "request_id"],
        update_fields=["label", "at"],
    )
    return len(newest)


def refresh_rollups(*, now: datetime) -> None:
    """Roll up the minutes, hours and days that are over, and what came late for those before."""
    rollups.refresh(now)


def keep_series(*, now: datetime) -> None:
    """Create the days to come, drop what has outlived its retention, forget cursors of long gone boots.

    Nothing is dropped that isn't rolled up yet: so that is done first, and what is left of it keeps its rows.
    """
    store.keep_ahead(now)
    rollups.refresh(now)
    for series, cutoff in cutoffs(now).items():
        store.drop_before(series, cutoff)
    for rollup in ("gpu_minute", "gpu_hour", "gpu_day"):
        store.to_columns(rollup, now - COLUMNS_AFTER)
    TelemetryCursor.objects.filter(updated_at__lt=now - CURSOR_LIFE).delete()


def cutoffs(now: datetime) -> dict[str, datetime]:
    """Before which moment each series may go. Days are kept for good."""
    keep = settings.FARRIER
    raw = now - timedelta(hours=keep.raw_retention_h)
    minute = now - timedelta(days=keep.minute_retention_d)
    hour = now - timedelta(days=keep.hour_retention_d)
    return {
        "inference_log": min(raw, rollups.oldest_unrolled("inference_log")),
        "comparison": raw,
        "gpu_sample": min(raw, rollups.oldest_unrolled("gpu_sample")),
        "engine_sample": raw,
        "gpu_minute": min(minute, rollups.rolled_until("gpu_hour")),
        "inference_minute": minute,
        "gpu_hour": min(hour, rollups.rolled_until("gpu_day")),
    }
