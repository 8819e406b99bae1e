"""What happened: append-only events, the seals that chain them, and the outbox of effects that leave the process."""

from __future__ import annotations

from urllib.parse import urlsplit

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models.functions import Cast, Now

from apps.access.actors import ActorKind as ActorKind
from apps.lib.ids import uuid7


class CurrentXid(models.Func):
    """The id of the writing transaction (xid8), which orders events by commit visibility."""

    function = "pg_current_xact_id"
    output_field = models.TextField()


class Event(models.Model):
    """One thing that happened to one object. Rows are inserted and never changed (trigger, and the role's rights)."""

    at = models.DateTimeField(db_default=Now())
    xid = models.BigIntegerField(db_default=Cast(Cast(CurrentXid(), models.TextField()), models.BigIntegerField()))
    team_id = models.UUIDField(null=True)  # plain ids: an event outlives what it speaks of
    actor_kind = models.CharField(max_length=8, choices=ActorKind.choices)
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    actor_label = models.CharField(max_length=200)
    verb = models.CharField(max_length=64)  # «rollout.approved», «node.cordoned»
    object_type = models.CharField(max_length=64)  # model label, «rollouts.rollout»
    object_id = models.CharField(max_length=128)  # a key, or an artifact's digest
    object_label = models.CharField(max_length=200)
    from_state = models.CharField(max_length=32, blank=True)
    to_state = models.CharField(max_length=32, blank=True)
    reason = models.TextField(blank=True)
    data = models.JSONField(default=dict)

    class Meta:
        db_table = "audit_event"
        indexes = [
            models.Index(fields=["object_type", "object_id", "id"], name="audit_event_object"),
            models.Index(fields=["team_id", "-id"], name="audit_event_team"),
            models.Index(fields=["xid", "id"], name="audit_event_order"),
        ]
        triggers = [pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)]


class Seal(models.Model):
    """Event `event_id` is link `position` of the hash chain. Written by the one sealer."""

    position = models.BigIntegerField(primary_key=True)
    event = models.OneToOneField(Event, on_delete=models.PROTECT, related_name="seal")
    restore_epoch = models.PositiveIntegerField()
    hash = models.BinaryField(max_length=32)  # SHA-256(previous hash ‖ canonical JSON of the event)

    class Meta:
        db_table = "audit_seal"
        triggers = [pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)]


class Checkpoint(models.Model):
    """A signed statement that the chain ended at `position` with `hash`, made each minute; ship it off the machine."""

    position = models.BigIntegerField()
    hash = models.BinaryField(max_length=32)
    signature = models.BinaryField()  # Ed25519 over «farrier-audit-v1\n{position}\n{hash hex}\n{at}»
    at = models.DateTimeField()

    class Meta:
        db_table = "audit_checkpoint"


class RestoreEpoch(models.Model):
    """Raised by every restore from backup: transaction ids start over, the order of events must not."""

    epoch = models.PositiveIntegerField(primary_key=True)
    at = models.DateTimeField(db_default=Now())
    reason = models.TextField()

    class Meta:
        db_table = "audit_restoreepoch"


class Webhook(models.Model):
    """Where a team wants to be told. Payloads are signed by the Standard Webhooks scheme with `secret`."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    team = models.ForeignKey("access.Team", on_delete=models.CASCADE, related_name="+")
    url = models.URLField(max_length=500)
    secret = models.CharField(max_length=100)
    topics = models.JSONField(default=list)  # empty: all
    enabled = models.BooleanField(default=True)

    class Meta:
        db_table = "audit_webhook"

    def __str__(self) -> str:
        return self.host

    @property
    def host(self) -> str:
        """What everybody may know of the address: its path is as good as a password at many receivers."""
        return urlsplit(self.url).hostname or ""


class Outbox(models.Model):
    """An effect that leaves the process, one row a destination, written in the transaction that causes it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    kind = models.CharField(max_length=32)  # «webhook»
    topic = models.CharField(max_length=64)  # «rollout.waiting_for_approval»
    payload = models.JSONField()
    team_id = models.UUIDField(null=True)
    webhook = models.ForeignKey(Webhook, null=True, on_delete=models.CASCADE, related_name="deliveries")
    created_at = models.DateTimeField(db_default=Now())
    due_at = models.DateTimeField(db_default=Now())
    attempts = models.PositiveSmallIntegerField(default=0)
    lease_until = models.DateTimeField(null=True)
    lease_epoch = models.PositiveIntegerField(default=0)
    done_at = models.DateTimeField(null=True)
    parked_at = models.DateTimeField(null=True)  # given up after too many attempts; a person may send it again
    last_error = models.TextField(blank=True)

    class Meta:
        db_table = "audit_outbox"
        indexes = [
            models.Index(
                fields=["due_at"],
                name="audit_outbox_due",
                condition=models.Q(done_at__isnull=True, parked_at__isnull=True),
            ),
        ]

    @property
    def status(self) -> str:
        """What became of it: delivered, parked (given up), trying (again), or due."""
        if self.done_at is not None:
            return "delivered"
        if self.parked_at is not None:
            return "parked"
        return "trying" if self.attempts else "due"
