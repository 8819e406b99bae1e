"""Rollouts: strategies of typed stages, their attempts and evidence, verdicts, approvals, holds."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from apps.access.models import SlugField, Team
from apps.fleet.models import Node, Pool
from apps.lib.ids import uuid7
from apps.models.models import Artifact, ModelVersion, RegisteredModel


class Strategy(models.Model):
    """A named list of typed stages; checked when written (rollouts/strategy.py), frozen into each rollout."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    slug = SlugField()
    description = models.TextField(blank=True)
    stages = models.JSONField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "rollouts_strategy"
        verbose_name_plural = "strategies"
        constraints = [models.UniqueConstraint(fields=["team", "slug"], name="rollouts_strategy_slug")]

    def __str__(self) -> str:
        return self.slug


class Phase(models.TextChoices):
    PENDING = "pending", "Pending"
    PROGRESSING = "progressing", "Progressing"
    PAUSED = "paused", "Paused"  # with pause_reason
    PROMOTING = "promoting", "Promoting"
    COMPLETED = "completed", "Completed"
    ROLLING_BACK = "rolling_back", "Rolling back"  # a verdict's
    ROLLED_BACK = "rolled_back", "Rolled back"
    ABORTING = "aborting", "Aborting"  # a person's
    ABORTED = "aborted", "Aborted"
    SUPERSEDED = "superseded", "Superseded"


class PauseReason(models.TextChoices):
    APPROVAL = "approval", "Waiting for approval"
    INCONCLUSIVE = "inconclusive", "The evidence did not decide; a person must"
    OPERATOR = "operator", "Paused by a person"
    NODES = "nodes", "Nodes did not become ready"


# A sequence has gaps where a start failed, and never gives a number twice.
NEXT_NUMBER = models.Func(models.Value("rollouts_number"), function="nextval", output_field=models.BigIntegerField())


class Rollout(models.Model):
    """One version on its way onto a pool's nodes."""

    TRANSITIONS = {
        # to promoting: the first version on a pool has nothing to be compared with
        Phase.PENDING: frozenset(
            {Phase.PROGRESSING, Phase.PROMOTING, Phase.ABORTING, Phase.ROLLING_BACK, Phase.SUPERSEDED}
        ),
        # to itself: the next stage begins, by the same checked and recorded move as a change of phase
        Phase.PROGRESSING: frozenset(
            {Phase.PROGRESSING, Phase.PAUSED, Phase.PROMOTING, Phase.ROLLING_BACK, Phase.ABORTING}
        ),
        Phase.PAUSED: frozenset({Phase.PAUSED, Phase.PROGRESSING, Phase.PROMOTING, Phase.ROLLING_BACK, Phase.ABORTING}),
        Phase.PROMOTING: frozenset({Phase.COMPLETED, Phase.ROLLING_BACK, Phase.ABORTING, Phase.PAUSED}),
        Phase.ROLLING_BACK: frozenset({Phase.ROLLED_BACK, Phase.ABORTING}),
        Phase.ABORTING: frozenset({Phase.ABORTED}),
        Phase.COMPLETED: frozenset[str](),
        Phase.ROLLED_BACK: frozenset[str](),
        Phase.ABORTED: frozenset[str](),
        Phase.SUPERSEDED: frozenset[str](),
    }
    STATE_FIELD = "phase"
    TERMINAL = frozenset({Phase.COMPLETED, Phase.ROLLED_BACK, Phase.ABORTED, Phase.SUPERSEDED})

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    number = models.BigIntegerField(unique=True, db_default=NEXT_NUMBER)  # what people say: «#42»
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    model = models.ForeignKey(RegisteredModel, on_delete=models.PROTECT, related_name="rollouts")
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="rollouts")
    artifact = models.ForeignKey(Artifact, on_delete=models.PROTECT, related_name="+")
    baseline = models.ForeignKey(ModelVersion, null=True, on_delete=models.PROTECT, related_name="+")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+")
    strategy = models.ForeignKey(Strategy, null=True, on_delete=models.PROTECT, related_name="+")
    plan = models.JSONField()  # the stages as frozen at the start
    plan_sha256 = models.CharField(max_length=64)
    phase = models.CharField(max_length=16, choices=Phase.choices, default=Phase.PENDING)
    pause_reason = models.CharField(max_length=16, choices=PauseReason.choices, blank=True)
    revision = models.PositiveIntegerField(default=0)
    stage_index = models.PositiveSmallIntegerField(default=0)
    reason = models.TextField()  # why it was asked for
    decision = models.TextField(blank=True)  # one sentence: what decided its end
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    requested_via = models.CharField(max_length=120, blank=True)  # the token's name, if CI asked

    # one writer at a time: claimed by a short UPDATE, every effect filters on the epoch
    due_at = models.DateTimeField(db_default=Now())
    lease_until = models.DateTimeField(null=True)
    lease_epoch = models.PositiveIntegerField(default=0)
    phase_deadline = models.DateTimeField()
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "rollouts_rollout"
        constraints = [
            models.UniqueConstraint(
                fields=["model", "pool"],
                condition=~models.Q(phase__in=["completed", "rolled_back", "aborted", "superseded"]),
                name="rollouts_one_open_per_model_and_pool",
            ),
            models.CheckConstraint(condition=models.Q(phase__in=Phase.values), name="rollouts_rollout_phase"),
        ]
        indexes = [
            models.Index(
                fields=["due_at"],
                name="rollouts_rollout_due",
                condition=~models.Q(phase__in=["completed", "rolled_back", "aborted", "superseded"]),
            )
        ]

    def __str__(self) -> str:
        return f"#{self.number}"


class StageState(models.TextChoices):
    WAITING = "waiting", "Waiting"
    RUNNING = "running", "Running"
    PASSED = "passed", "Passed"
    FAILED = "failed", "Failed"


class Stage(models.Model):
    """One stage of one rollout. A repeated stage raises `attempt`; evidence belongs to an attempt."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="stages")
    index = models.PositiveSmallIntegerField()
    kind = models.CharField(max_length=16)  # shadow | canary | approval | full
    params = models.JSONField()
    state = models.CharField(max_length=16, choices=StageState.choices, default=StageState.WAITING)
    attempt = models.PositiveSmallIntegerField(default=0)
    started_at = models.DateTimeField(null=True)  # of this attempt
    ready_at = models.DateTimeField(null=True)  # every participating node serves it: evidence counts from here
    deadline = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    selected = models.JSONField(null=True)  # ids of the nodes of a canary on some nodes, chosen when it starts

    class Meta:
        db_table = "rollouts_stage"
        constraints = [models.UniqueConstraint(fields=["rollout", "index"], name="rollouts_stage_index")]


class Participant(models.Model):
    """A node that takes part in a rollout, and whether its evidence counts."""

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="participants")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    previous = models.ForeignKey(ModelVersion, null=True, on_delete=models.PROTECT, related_name="+")
    previous_artifact = models.ForeignKey(Artifact, null=True, on_delete=models.PROTECT, related_name="+")
    excluded_reason = models.TextField(blank=True)  # a sick node is left out of the evidence
    excluded_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "rollouts_participant"
        constraints = [models.UniqueConstraint(fields=["rollout", "node"], name="rollouts_participant_once")]


class Verdict(models.TextChoices):
    SUCCESSFUL = "successful", "Successful"
    FAILED = "failed", "Failed"
    INCONCLUSIVE = "inconclusive", "Inconclusive"
    ERROR = "error", "Error"
    NO_DATA = "no_data", "No data"


class Evidence(models.Model):
    """What one metric says in one attempt of a stage; replaced at every look, valid however often that is."""

    stage = models.ForeignKey(Stage, on_delete=models.CASCADE, related_name="evidence")
    attempt = models.PositiveSmallIntegerField()
    metric = models.CharField(max_length=32)
    required = models.BooleanField()
    verdict = models.CharField(max_length=16, choices=Verdict.choices)
    unit = models.CharField(max_length=16, blank=True)
    baseline = models.FloatField(null=True)
    candidate = models.FloatField(null=True)
    estimate = models.FloatField(null=True)  # of what the interval is about
    low = models.FloatField(null=True)
    high = models.FloatField(null=True)
    margin = models.FloatField(null=True)  # the bound that the interval is held against
    better = models.CharField(max_length=8, default="higher")  # than the margin: higher | lower
    samples = models.PositiveIntegerField(default=0)
    needed = models.PositiveIntegerField(default=0)
    sentence = models.TextField(blank=True)
    detail = models.JSONField(default=dict)  # histogram, worst pairs
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "rollouts_evidence"
        constraints = [
            models.UniqueConstraint(fields=["stage", "attempt", "metric"], name="rollouts_evidence_once"),
        ]


class EvidenceSnapshot(models.Model):
    """The evidence as it stood when a person was asked; an approval names it by digest."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="snapshots")
    stage = models.ForeignKey(Stage, on_delete=models.CASCADE, related_name="snapshots")
    attempt = models.PositiveSmallIntegerField()
    sha256 = models.CharField(max_length=64)
    plan_sha256 = models.CharField(max_length=64)
    content = models.JSONField()
    created_at = models.DateTimeField()

    class Meta:
        db_table = "rollouts_evidencesnapshot"
        constraints = [
            models.UniqueConstraint(fields=["stage", "attempt", "sha256"], name="rollouts_snapshot_once"),
        ]


class Approval(models.Model):
    """A person's decision on a frozen snapshot. The first reject, or enough approvals, decide."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="approvals")
    stage = models.ForeignKey(Stage, on_delete=models.CASCADE, related_name="approvals")
    attempt = models.PositiveSmallIntegerField()
    snapshot = models.ForeignKey(EvidenceSnapshot, on_delete=models.PROTECT, related_name="+")
    approve = models.BooleanField()
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    requester = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    reason = models.TextField()
    at = models.DateTimeField()

    class Meta:
        db_table = "rollouts_approval"
        constraints = [
            models.UniqueConstraint(fields=["stage", "attempt", "user"], name="rollouts_approval_once"),
            models.CheckConstraint(condition=~models.Q(user=models.F("requester")), name="rollouts_approval_four_eyes"),
            models.CheckConstraint(condition=~models.Q(reason=""), name="rollouts_approval_reason"),
        ]


class Hold(models.Model):
    """A digest that must not be rolled out until a named person lifts it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    digest = models.CharField(max_length=128)
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="holds")
    rollout = models.ForeignKey(Rollout, on_delete=models.PROTECT, related_name="holds")
    reason = models.TextField()
    placed_at = models.DateTimeField()
    lifted_at = models.DateTimeField(null=True)
    lifted_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    lift_reason = models.TextField(blank=True)

    class Meta:
        db_table = "rollouts_hold"
        constraints = [
            models.UniqueConstraint(
                fields=["digest"], condition=models.Q(lifted_at__isnull=True), name="rollouts_hold_one_active"
            )
        ]

    def __str__(self) -> str:
        return f"on {self.digest[:12]}"
