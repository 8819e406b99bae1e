"""The registry: registered models, immutable versions with their lineage, artifacts, aliases, public signing keys."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from apps.access.models import SlugField, Team
from apps.lib.ids import uuid7


class RegisteredModel(models.Model):
    """A name under which versions are kept, with what its service promises."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    slug = SlugField(unique=True)
    description = models.TextField(blank=True)
    task = models.CharField(max_length=32, blank=True)  # «embedding», «classification»
    slo_latency_ms = models.PositiveIntegerField(default=500)  # a request within it counts as good
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "registry_model"
        verbose_name = "model"

    def __str__(self) -> str:
        return self.slug


class VersionState(models.TextChoices):
    RESERVED = "reserved", "Reserved"  # the publisher has the number and signs it
    PUBLISHED = "published", "Published"  # verified and immutable
    ABANDONED = "abandoned", "Abandoned"  # reserved and never published


class ModelVersion(models.Model):
    """One state of a model's numbers. Immutable once published."""

    TRANSITIONS = {
        VersionState.RESERVED: frozenset({VersionState.PUBLISHED, VersionState.ABANDONED}),
        VersionState.PUBLISHED: frozenset[str](),
        VersionState.ABANDONED: frozenset[str](),
    }
    STATE_FIELD = "state"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    model = models.ForeignKey(RegisteredModel, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField()
    state = models.CharField(max_length=16, choices=VersionState.choices, default=VersionState.RESERVED)
    revision = models.PositiveIntegerField(default=0)
    # The four parts of its identity, SHA-256 in hex; empty until published.
    model_hash = models.CharField(max_length=64, blank=True)
    data_hash = models.CharField(max_length=64, blank=True)
    env_hash = models.CharField(max_length=64, blank=True)
    build_hash = models.CharField(max_length=64, blank=True)
    graph_hash = models.CharField(max_length=64, blank=True)  # beside the lineage, not in it
    lineage_inputs = models.JSONField(default=dict)  # what went into each hash: tensors, sources, packages, image
    baseline_metrics = models.JSONField(default=dict)  # {"auc": 0.99, …} as measured by the publisher
    precision = models.CharField(max_length=32, blank=True)  # «float32», «int8 per row»
    source_commit = models.CharField(max_length=64, blank=True)
    notes = models.TextField(blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    published_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "registry_version"
        verbose_name = "model version"
        constraints = [models.UniqueConstraint(fields=["model", "number"], name="registry_version_number")]

    def __str__(self) -> str:
        return f"{self.model.slug} v{self.number}"

    @property
    def lineage(self) -> str:
        """`{model_hash}_{data_hash}_{env_hash}_{build_hash}`."""
        return "_".join((self.model_hash, self.data_hash, self.env_hash, self.build_hash))


class StoredBlob(models.Model):
    """A verified .aifb in the artifact store, uploaded before the version that names it is published."""

    digest = models.CharField(max_length=128, primary_key=True)
    total_bytes = models.BigIntegerField()
    flat_sha3_512 = models.CharField(max_length=128)
    leaf_table = models.BinaryField()  # the 128-byte header and the leaves, as nodes fetch them
    model_hash = models.CharField(max_length=64)  # recomputed here from the stored tensors
    graph_hash = models.CharField(max_length=64, blank=True)
    tensors = models.JSONField(default=list)  # [{name, dtype, shape, bytes, sha256}], for lineage diffs
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    uploaded_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    uploaded_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "registry_blob"


class Artifact(models.Model):
    """A signed artifact of a version; a version's artifacts differ only in device or layout."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="artifacts")
    blob = models.OneToOneField(StoredBlob, on_delete=models.PROTECT, related_name="artifact")
    digest = models.CharField(max_length=128, unique=True)
    manifest = models.BinaryField()  # the DSSE envelope exactly as the publisher sent it
    signed_by = models.CharField(max_length=64)  # keyid
    security_floor = models.PositiveIntegerField(default=0)
    device = models.CharField(max_length=32, default="any")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "registry_artifact"

    def __str__(self) -> str:
        return f"{self.version} {self.digest[:12]}"


class Alias(models.Model):
    """A movable name of a version: `champion` serves, `challenger` is on trial."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    model = models.ForeignKey(RegisteredModel, on_delete=models.CASCADE, related_name="aliases")
    name = SlugField()
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="aliases")
    revision = models.PositiveIntegerField(default=0)

    class Meta:
        db_table = "registry_alias"
        constraints = [models.UniqueConstraint(fields=["model", "name"], name="registry_alias_name")]

    def __str__(self) -> str:
        return f"{self.model.slug}@{self.name}"


class AliasMove(models.Model):
    """Append-only history of an alias: answers «what served at T?»."""

    alias = models.ForeignKey(Alias, on_delete=models.CASCADE, related_name="moves")
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField()
    actor_label = models.CharField(max_length=200)
    reason = models.TextField()
    rollout_id = models.UUIDField(null=True)

    class Meta:
        db_table = "registry_aliasmove"
        indexes = [models.Index(fields=["alias", "at"], name="registry_aliasmove_when")]


class TrustRoot(models.Model):
    """A version of the root document that says which keys may sign what; nodes walk every version."""

    version = models.PositiveIntegerField(primary_key=True)
    envelope = models.BinaryField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "registry_trustroot"
