"""The hash chain over events, made after the fact by one sealer, so that writers never wait for each other.

Order: (restore epoch, transaction id, event id). A row is sealed once every transaction up to its own has ended, which
is when its id lies below the snapshot's xmin: nothing can appear before it any more. Hash of link n:
SHA-256(hash of link n-1 ‖ canonical JSON of the event, its position and epoch); the first follows 32 zero bytes.
"""

from __future__ import annotations

import hashlib
import logging
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import connections, transaction
from django.db.models import Max, Min, Q, QuerySet
from django.db.models.expressions import RawSQL

from apps.access.actors import SYSTEM
from apps.audit import keys
from apps.audit.models import Checkpoint, Event, RestoreEpoch, Seal
from apps.audit.transitions import record
from apps.lib.canonical import canonical_json
from apps.lib.errors import Conflict

log = logging.getLogger("farrier.audit")

GENESIS = bytes(32)
BATCH_EVENTS = 2_000
LAG_LIMIT_S = 60.0
LAG_REPEAT = timedelta(minutes=10)
_LOCK = 0x6661_7272_6965_72  # «farrier»


def owner_db() -> str:
    """Alias of the role that owns the tables: the only one that may write seals."""
    return "owner" if "owner" in settings.DATABASES else "default"


def event_line(event: Event, position: int, restore_epoch: int) -> bytes:
    """Return the canonical text of an event as link `position` of the chain: everything that its row says."""
    return canonical_json(
        {
            "position": position,
            "restore_epoch": restore_epoch,
            "id": event.pk,
            "xid": event.xid,
            "at": event.at.astimezone(UTC).isoformat(timespec="microseconds"),
            "team_id": str(event.team_id) if event.team_id else None,
            "actor_kind": event.actor_kind,
            "actor_id": str(event.actor_id) if event.actor_id else None,
            "actor_label": event.actor_label,
            "verb": event.verb,
            "object_type": event.object_type,
            "object_id": event.object_id,
            "object_label": event.object_label,
            "from_state": event.from_state,
            "to_state": event.to_state,
            "reason": event.reason,
            "data": event.data,
        }
    )


def link_hash(previous: bytes, line: bytes) -> bytes:
    """SHA-256 of a link (32 bytes)."""
    return hashlib.sha256(previous + line).digest()


def seal_events(*, limit: int = BATCH_EVENTS) -> int:
    """Chain every event that can be chained; return how many. A second sealer at work makes this one return 0.

    Raises Conflict when transaction ids have gone back, as after a restore that nobody told `mark_restored` of.
    """
    sealed = 0
    while True:
        with transaction.atomic(using=owner_db()):
            if not _lock():
                return sealed
            count = _seal_batch(limit)
        sealed += count
        if count < limit:
            return sealed


def _lock(*, wait: bool = False) -> bool:
    """Take the sealer's transaction-scoped lock."""
    with connections[owner_db()].cursor() as cursor:
        if wait:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            return True
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        return bool(cursor.fetchone()[0])


def _seal_batch(limit: int) -> int:
    tail, epoch = _tail(), current_epoch()
    _refuse_unmarked_restore(tail, epoch)
    finished = RawSQL("pg_snapshot_xmin(pg_current_snapshot())::text::bigint", [])
    events = _unsealed(tail, epoch).filter(xid__lt=finished).order_by("xid", "id")[:limit]
    return _append(list(events), tail, epoch)


def _append(events: list[Event], tail: Seal | None, epoch: int) -> int:
    position, previous = (tail.position, bytes(tail.hash)) if tail else (0, GENESIS)
    seals = []
    for event in events:
        position += 1
        previous = link_hash(previous, event_line(event, position, epoch))
        seals.append(Seal(position=position, event=event, restore_epoch=epoch, hash=previous))
    Seal.objects.using(owner_db()).bulk_create(seals)
    return len(seals)


def _tail() -> Seal | None:
    return Seal.objects.using(owner_db()).select_related("event").order_by("-position").first()


def current_epoch() -> int:
    """Return the number of restores from backup so far."""
    epoch: int | None = RestoreEpoch.objects.using(owner_db()).aggregate(newest=Max("epoch"))["newest"]
    return epoch or 0


def _unsealed(tail: Seal | None, epoch: int) -> QuerySet[Event]:
    """Events behind the end of the chain. The watermark keeps a tick's cost at what is new."""
    events = Event.objects.using(owner_db()).filter(seal__isnull=True)
    if tail is not None and tail.restore_epoch == epoch:
        last = tail.event
        events = events.filter(Q(xid__gt=last.xid) | Q(xid=last.xid, id__gt=last.pk))
    return events


def _refuse_unmarked_restore(tail: Seal | None, epoch: int) -> None:
    if tail is None or tail.restore_epoch != epoch:
        return
    with connections[owner_db()].cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        (next_xid,) = cursor.fetchone()
    if tail.event.xid >= next_xid:
        raise Conflict(
            "restore_not_marked",
            f"The chain ends at transaction {tail.event.xid}, the database is at {next_xid}: it was restored. "
            "Run `manage.py after_restore`.",
        )


def mark_restored(*, reason: str = "restored from a backup", now: datetime | None = None) -> int:
    """Tell the chain that the database was restored: what came with the backup is sealed first, under the old epoch.

    Returns the new epoch. Call it before anything else writes.
    """
    db, moment = owner_db(), now or datetime.now(UTC)
    with transaction.atomic(using=db):
        _lock(wait=True)
        with connections[db].cursor() as cursor:
            cursor.execute("LOCK TABLE audit_event IN SHARE ROW EXCLUSIVE MODE")
        tail, epoch = _tail(), current_epoch()
        _append(list(_unsealed(tail, epoch).order_by("xid", "id")), tail, epoch)
        RestoreEpoch.objects.using(db).create(epoch=epoch + 1, at=moment, reason=reason)
    mark = RestoreEpoch.objects.using(db).get(epoch=epoch + 1)
    record(mark, "audit.restored", actor=SYSTEM, reason=reason, now=moment)
    return epoch + 1


def sign_checkpoint(*, now: datetime) -> Checkpoint | None:
    """Sign where the chain ends; None when it has not grown since the last checkpoint. Raises Conflict without key.

    Each is appended to FARRIER_HOME/audit/checkpoints.jsonl too: ship that file off the machine, since whoever owns
    the database could drop the newest links together with their checkpoints.
    """
    tail = _tail()
    last = Checkpoint.objects.using(owner_db()).order_by("-position", "-id").first()
    if tail is None or (last is not None and last.position >= tail.position):
        return None
    checkpoint = Checkpoint(position=tail.position, hash=bytes(tail.hash), at=now)
    checkpoint.signature = keys.signing_key().sign(keys.checkpoint_text(checkpoint))
    checkpoint.save(using=owner_db(), force_insert=True)
    keys.append_checkpoint(checkpoint)
    return checkpoint


def seal_lag_s(*, now: datetime) -> float:
    """Return the age in seconds of the oldest event outside the chain; 0 when there is none."""
    oldest: datetime | None = _unsealed(_tail(), current_epoch()).aggregate(oldest=Min("at"))["oldest"]
    return max(0.0, (now - oldest).total_seconds()) if oldest else 0.0


def watch_lag(*, now: datetime) -> float:
    """Measure the lag; above a minute log an error and, every ten minutes, leave an event. Returns the lag in s."""
    lag_s = seal_lag_s(now=now)
    if lag_s <= LAG_LIMIT_S:
        return lag_s
    log.error("the audit chain is %.0f s behind; is a transaction open since then? (pg_stat_activity)", lag_s)
    told = Event.objects.filter(verb="audit.lagging", at__gt=now - LAG_REPEAT).exists()
    if not told:
        record(_tail() or Seal(position=0), "audit.lagging", actor=SYSTEM, now=now, data={"lag_s": round(lag_s)})
    return lag_s
