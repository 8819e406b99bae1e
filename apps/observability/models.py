"""What is measured. The time-series tables (store.SERIES) are not Django models: see store.py."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from apps.access.models import Team
from apps.fleet.models import Node
from apps.observability.alert_models import Alert, AlertNotice, AlertRule, Silence

__all__ = ["Alert", "AlertNotice", "AlertRule", "Feedback", "Silence", "StoreKind", "TelemetryCursor"]


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


class DetectorGroup(models.Model):
    """Up to 4,096 GPUs' series of one metric: they are judged together, one array a phase."""

    metric = models.CharField(max_length=64)  # a name of protocol.metrics.GPU
    number = models.PositiveIntegerField()
    gpus = ArrayField(models.IntegerField(), default=list)  # Gpu.number; append only: places in the arrays
    watermark = models.BigIntegerField()  # the last Unix minute that was judged

    class Meta:
        db_table = "observability_detectorgroup"
        constraints = [
            models.UniqueConstraint(fields=["metric", "number"], name="observability_detector_group"),
            models.CheckConstraint(condition=models.Q(gpus__len__lte=4_096), name="observability_detector_size"),
        ]


class DetectorState(models.Model):
    """One phase of what is known of a group, or one of its vectors: float32, one value a GPU, in the group's order."""

    group = models.ForeignKey(DetectorGroup, on_delete=models.CASCADE, related_name="+")
    phase = models.SmallIntegerField()  # 0..1439 minute of the day, 1440..1607 hour of the week, below 0 a vector
    vector = models.BinaryField()

    class Meta:
        db_table = "observability_detectorstate"
        constraints = [models.UniqueConstraint(fields=["group", "phase"], name="observability_detector_phase")]


class DetectorOutput(models.Model):
    """One minute's judgment of a group: thirteen bytes a GPU (detector_store.SCORE), in the group's order."""

    group = models.ForeignKey(DetectorGroup, on_delete=models.CASCADE, related_name="+")
    minute = models.BigIntegerField()  # Unix minutes
    scores = models.BinaryField()  # stored uncompressed, so that one GPU's bytes are read without the others'

    class Meta:
        db_table = "observability_detectoroutput"
        constraints = [models.UniqueConstraint(fields=["group", "minute"], name="observability_detector_minute")]


class Rebaseline(models.Model):
    """A series was given a new level, since it had been off for a day; after that it counts as normal."""

    gpu = models.IntegerField()  # Gpu.number; the record outlives the GPU
    metric = models.CharField(max_length=64)
    at = models.DateTimeField()
    level_before = models.FloatField()
    level_after = models.FloatField()

    class Meta:
        db_table = "observability_rebaseline"
        indexes = [models.Index(fields=["gpu", "metric", "at"], name="observability_rebaseline_gpu")]
