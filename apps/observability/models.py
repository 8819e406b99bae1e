"""What is measured. The time-series tables (store.SERIES) are not Django models: see store.py."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from apps.access.models import Team
from apps.fleet.models import Node


class TelemetryCursor(models.Model):
    """How far a node's batches of one boot are stored; a batch at or below it is a repeat."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    boot_id = models.UUIDField()
    seq = models.BigIntegerField(default=0)
    dropped_rows = models.BigIntegerField(default=0)  # too far ahead in time
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "observability_telemetrycursor"
        constraints = [models.UniqueConstraint(fields=["node", "boot_id"], name="observability_cursor_boot")]


class Feedback(models.Model):
    """The true label of a request, as its caller learned it later."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    request_id = models.CharField(max_length=64)
    label = models.CharField(max_length=120)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "observability_feedback"
        constraints = [models.UniqueConstraint(fields=["team", "request_id"], name="observability_feedback_once")]


class StoreKind(models.Model):
    """Whether this database keeps its series in TimescaleDB or in plain partitions; set by the first migration."""

    kind = models.CharField(max_length=16, primary_key=True)  # timescale | plain
    recorded_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "observability_storekind"


class Rollup(models.Model):
    """How far a rollup goes: buckets that begin before `rolled_until` are made, but for what DirtyMinute says."""

    series = models.CharField(max_length=32, primary_key=True)
    rolled_until = models.DateTimeField()

    class Meta:
        db_table = "observability_rollup"


class DirtyMinute(models.Model):
    """A minute into which a batch has put rows since it was last rolled up; written with them, in one transaction.

    A new row a batch and minute, never updated: nodes don't wait for each other, and the refresh that deletes what it
    sees has seen those rows too.
    """

    series = models.CharField(max_length=32)  # inference_log | gpu_sample
    minute = models.DateTimeField()
    gpus = ArrayField(models.IntegerField(), default=list)  # whose; empty: everything in that minute

    class Meta:
        db_table = "observability_dirtyminute"
        indexes = [models.Index(fields=["series", "minute"], name="observability_dirty_minute")]
