"""The fleet: nodes and their GPUs, how they enrol, what they should run and what they say they run."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Func, Value
from django.db.models.functions import Now

from apps.access.models import SlugField, Team
from apps.lib.ids import uuid7
from apps.models.models import Artifact, ModelVersion, RegisteredModel


class Pool(models.Model):
    """Nodes that are treated alike: who may join, how often they poll."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    slug = SlugField(unique=True)
    description = models.TextField(blank=True)
    auto_accept = models.BooleanField(default=False)  # the pool's rule: a valid join token is enough
    poll_interval_s = models.FloatField(default=30.0)
    requires_approval = models.BooleanField(default=True)  # what it serves is replaced only after a person said yes
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "fleet_pool"

    def __str__(self) -> str:
        return self.slug


class JoinToken(models.Model):
    """A single-use right to enrol one node; only its SHA-256 is kept."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="+")
    token_sha256 = models.BinaryField(max_length=32, unique=True)
    node_name = models.CharField(max_length=63, blank=True)  # bound to one name, if set
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)
    # a node that lost our answer may ask again with the same key
    used_by = models.ForeignKey("Node", null=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        db_table = "fleet_jointoken"

    def __str__(self) -> str:
        return f"for {self.node_name or 'one node'} of pool {self.pool}"


class NodePhase(models.TextChoices):
    PENDING = "pending", "Pending"
    ACCEPTED = "accepted", "Accepted"  # may poll; has not yet
    REJECTED = "rejected", "Rejected"
    ACTIVE = "active", "Active"
    CORDONED = "cordoned", "Cordoned"  # serves what it has, gets nothing new
    DRAINING = "draining", "Draining"
    QUARANTINED = "quarantined", "Quarantined"  # locked: its credential was cloned or it misbehaves
    BANNED = "banned", "Banned"


class Node(models.Model):
    """A GPU host. Its identity is its key, never its host name."""

    TRANSITIONS = {
        NodePhase.PENDING: frozenset({NodePhase.ACCEPTED, NodePhase.REJECTED, NodePhase.BANNED}),
        NodePhase.ACCEPTED: frozenset({NodePhase.ACTIVE, NodePhase.REJECTED, NodePhase.QUARANTINED, NodePhase.BANNED}),
        NodePhase.REJECTED: frozenset({NodePhase.ACCEPTED, NodePhase.BANNED}),
        NodePhase.ACTIVE: frozenset({NodePhase.CORDONED, NodePhase.DRAINING, NodePhase.QUARANTINED, NodePhase.BANNED}),
        NodePhase.CORDONED: frozenset({NodePhase.ACTIVE, NodePhase.DRAINING, NodePhase.QUARANTINED, NodePhase.BANNED}),
        NodePhase.DRAINING: frozenset({NodePhase.ACTIVE, NodePhase.CORDONED, NodePhase.QUARANTINED, NodePhase.BANNED}),
        NodePhase.QUARANTINED: frozenset({NodePhase.ACCEPTED, NodePhase.BANNED}),
        NodePhase.BANNED: frozenset[str](),
    }
    STATE_FIELD = "phase"
    MAY_TALK = frozenset({NodePhase.ACCEPTED, NodePhase.ACTIVE, NodePhase.CORDONED, NodePhase.DRAINING})
    TAKES_WORK = frozenset({NodePhase.ACCEPTED, NodePhase.ACTIVE})

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="nodes")
    name = SlugField(unique=True)
    zone = SlugField()
    labels = models.JSONField(default=dict)
    hostname = models.CharField(max_length=255, blank=True)
    phase = models.CharField(max_length=16, choices=NodePhase.choices, default=NodePhase.PENDING)
    revision = models.PositiveIntegerField(default=0)

    public_key = models.BinaryField(max_length=32, unique=True)
    credential_generation = models.PositiveIntegerField(default=1)
    credential_expires_at = models.DateTimeField()
    credential_used = models.BooleanField(default=False)  # until true, the previous generation may still renew

    agent_version = models.CharField(max_length=64, blank=True)
    protocol = models.PositiveSmallIntegerField(default=1)
    hardware = models.JSONField(default=dict)
    gateway_url = models.CharField(max_length=255, blank=True)
    last_seen_at = models.DateTimeField(null=True)
    clock_offset_s = models.FloatField(default=0.0)
    boot_number = models.PositiveIntegerField(default=0)  # of the newest boot seen
    report_seq = models.BigIntegerField(default=0)

    # desired ≠ compiled means that the assignment must be compiled and signed anew
    desired_generation = models.PositiveIntegerField(default=0)
    compiled_generation = models.PositiveIntegerField(default=0)
    observed_sequence = models.BigIntegerField(default=0)  # the last assignment that the node accepted
    observed_epoch = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "fleet_node"
        verbose_name = "node"
        constraints = [
            models.CheckConstraint(condition=models.Q(phase__in=NodePhase.values), name="fleet_node_phase"),
        ]
        indexes = [
            models.Index(
                fields=["id"],
                name="fleet_node_uncompiled",
                condition=~models.Q(desired_generation=models.F("compiled_generation")),
            )
        ]

    def __str__(self) -> str:
        return self.name


class NodeBoot(models.Model):
    """The server numbers a node's boot ids at first sight and drops reports of older boots."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="boots")
    boot_id = models.UUIDField()
    number = models.PositiveIntegerField()
    first_seen_at = models.DateTimeField()

    class Meta:
        db_table = "fleet_nodeboot"
        constraints = [
            models.UniqueConstraint(fields=["node", "boot_id"], name="fleet_nodeboot_id"),
            models.UniqueConstraint(fields=["node", "number"], name="fleet_nodeboot_number"),
        ]


class GpuHealth(models.TextChoices):
    """What is known of one GPU's health, worst last; alerts and reports write it."""

    UNKNOWN = "unknown", "no data"
    OK = "ok", "healthy"
    THROTTLED = "throttled", "throttled"
    HOT = "hot", "hot"
    XID = "xid", "Xid error"
    LOST = "lost", "lost"


class Gpu(models.Model):
    """A GPU of a node, known by its UUID. `number` stands for it in the time series: four bytes a row, not forty."""

    SICK = frozenset({GpuHealth.HOT, GpuHealth.XID, GpuHealth.LOST, GpuHealth.THROTTLED})

    uuid = models.CharField(max_length=96, primary_key=True)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="gpus")
    index = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=120)
    memory_bytes = models.BigIntegerField()
    simulated = models.BooleanField(default=False)  # said wherever its numbers are shown
    number = models.IntegerField(unique=True, db_default=Func(Value("fleet_gpu_number"), function="nextval"))
    health = models.CharField(max_length=16, choices=GpuHealth.choices, default=GpuHealth.UNKNOWN)
    health_reason = models.TextField(blank=True)
    health_since = models.DateTimeField(null=True)

    class Meta:
        db_table = "fleet_gpu"
        constraints = [
            models.CheckConstraint(condition=models.Q(health__in=GpuHealth.values), name="fleet_gpu_health"),
        ]


class Condition(models.Model):
    """A standing fact about a node, as it reports it: type, status, reason, since."""

    # Under these a node's figures say something about the node, not about the model that it serves.
    SICK = {
        "GpuLost": GpuHealth.LOST,
        "GpuXid": GpuHealth.XID,
        "GpuEcc": GpuHealth.XID,
        "GpuHot": GpuHealth.HOT,
        "GpuThrottled": GpuHealth.THROTTLED,
    }

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="conditions")
    type = models.CharField(max_length=63)
    status = models.CharField(max_length=8)  # true | false | unknown
    reason = models.CharField(max_length=63, blank=True)
    message = models.TextField(blank=True)
    since = models.DateTimeField()

    class Meta:
        db_table = "fleet_condition"
        constraints = [models.UniqueConstraint(fields=["node", "type"], name="fleet_condition_type")]


class DesiredDeployment(models.Model):
    """That a node should serve a version, in a role, with a share of the requests. Rollouts write these."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="desired")
    model = models.ForeignKey(RegisteredModel, on_delete=models.PROTECT, related_name="+")
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="desired")
    artifact = models.ForeignKey(Artifact, on_delete=models.PROTECT, related_name="+")
    role = models.CharField(max_length=16)  # protocol.messages.Role
    weight = models.PositiveSmallIntegerField()
    mirror_percent = models.PositiveSmallIntegerField(default=0)
    rollout_id = models.UUIDField(null=True)
    stage = models.PositiveSmallIntegerField(null=True)
    attempt = models.PositiveSmallIntegerField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "fleet_desireddeployment"
        constraints = [
            models.UniqueConstraint(fields=["node", "model", "role"], name="fleet_desired_role"),
            models.CheckConstraint(condition=models.Q(weight__lte=100), name="fleet_desired_weight"),
            models.CheckConstraint(condition=models.Q(mirror_percent__lte=100), name="fleet_desired_mirror"),
            models.CheckConstraint(
                condition=models.Q(role__in=["baseline", "candidate"]), name="fleet_desired_role_known"
            ),
        ]
        indexes = [models.Index(fields=["rollout_id"], name="fleet_desired_rollout")]


class ReportedDeployment(models.Model):
    """What a node last said of a deployment. Any state may follow any: agents skip states between polls."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="reported")
    deployment_id = models.UUIDField()
    digest = models.CharField(max_length=128)
    state = models.CharField(max_length=16)  # protocol.messages.DeploymentState
    reason_code = models.CharField(max_length=63, blank=True)
    reason = models.TextField(blank=True)
    warmup_ms = models.FloatField(null=True)
    weight_in_force = models.PositiveSmallIntegerField(default=0)
    since = models.DateTimeField()
    reported_at = models.DateTimeField()

    class Meta:
        db_table = "fleet_reporteddeployment"
        constraints = [models.UniqueConstraint(fields=["node", "deployment_id"], name="fleet_reported_once")]
        indexes = [models.Index(fields=["deployment_id"], name="fleet_reported_deployment")]


class Refusal(models.Model):
    """Something a node would not accept, and why."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="refusals")
    code = models.CharField(max_length=63)
    reason = models.TextField()
    sequence = models.BigIntegerField(null=True)
    digest = models.CharField(max_length=128, blank=True)
    at = models.DateTimeField()

    class Meta:
        db_table = "fleet_refusal"
        constraints = [models.UniqueConstraint(fields=["node", "code", "at"], name="fleet_refusal_once")]
        indexes = [models.Index(fields=["node", "-at"], name="fleet_refusal_newest")]


class Assignment(models.Model):
    """The signed statement of what a node is to run; its sequence rises only when the content changes."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, primary_key=True, related_name="assignment")
    director_epoch = models.PositiveIntegerField()
    sequence = models.BigIntegerField()
    content_sha256 = models.BinaryField(max_length=32)
    statement = models.BinaryField()
    index = models.PositiveIntegerField()
    path = ArrayField(models.BinaryField())
    envelope = models.BinaryField()
    issued = models.DateTimeField()
    expires = models.DateTimeField()
    digests = ArrayField(models.CharField(max_length=128), default=list)  # what the node may download

    class Meta:
        db_table = "fleet_assignment"


class Nonce(models.Model):
    """Nonces of signed requests, kept for three minutes so that none is accepted twice."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    nonce = models.BinaryField(max_length=16)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "fleet_nonce"
        constraints = [models.UniqueConstraint(fields=["node", "nonce"], name="fleet_nonce_once")]
        indexes = [models.Index(fields=["at"], name="fleet_nonce_age")]
