"""Shapes of the registry's endpoints."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from rest_framework import serializers

from aifb import lineage
from apps.models.models import Alias, AliasMove, ModelVersion, RegisteredModel, StoredBlob

ENVELOPE_MAX = 64 << 10
COMMIT_MAX = 64


class ModelOut(serializers.ModelSerializer[RegisteredModel]):
    newest = serializers.IntegerField(
        allow_null=True, default=None, help_text="Number of the newest published version."
    )
    published = serializers.IntegerField(default=0)
    aliases = serializers.SerializerMethodField()

    class Meta:
        model = RegisteredModel
        fields = ["slug", "description", "task", "slo_latency_ms", "newest", "published", "aliases", "created_at"]

    def get_aliases(self, model: RegisteredModel) -> dict[str, int]:
        return {alias.name: alias.version.number for alias in model.aliases.all()}


class ModelPatch(serializers.Serializer[Any]):
    description = serializers.CharField(required=False, allow_blank=True, max_length=10_000)
    task = serializers.CharField(required=False, allow_blank=True, max_length=32)
    slo_latency_ms = serializers.IntegerField(required=False, min_value=1, max_value=3_600_000)


class ArtifactOut(serializers.Serializer[Any]):
    digest = serializers.CharField()
    total_bytes = serializers.IntegerField(source="blob.total_bytes")
    flat_sha3_512 = serializers.CharField(source="blob.flat_sha3_512")
    signed_by = serializers.CharField()
    security_floor = serializers.IntegerField()
    device = serializers.CharField()


class VersionOut(serializers.ModelSerializer[ModelVersion]):
    model = serializers.CharField(source="model.slug", read_only=True)
    aliases = serializers.SlugRelatedField(slug_field="name", many=True, read_only=True)  # type: ignore[var-annotated]
    artifacts = ArtifactOut(many=True, read_only=True)
    created_by = serializers.CharField(source="created_by.username", read_only=True)

    class Meta:
        model = ModelVersion
        fields = [
            "id", "model", "number", "state", "aliases", "precision", "model_hash", "data_hash", "env_hash",
            "build_hash", "graph_hash", "baseline_metrics", "source_commit", "notes", "created_by", "created_at",
            "published_at", "artifacts",
        ]  # fmt: skip


class VersionDetail(VersionOut):
    lineage = serializers.CharField(read_only=True)

    class Meta(VersionOut.Meta):
        fields = [*VersionOut.Meta.fields, "lineage", "lineage_inputs"]


class ReserveIn(serializers.Serializer[Any]):
    source_commit = serializers.CharField(required=False, allow_blank=True, max_length=COMMIT_MAX, default="")
    notes = serializers.CharField(required=False, allow_blank=True, max_length=10_000, default="")
    task = serializers.CharField(required=False, allow_blank=True, max_length=32, default="")


class ReserveOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    model = serializers.CharField(source="model.slug")
    number = serializers.IntegerField()


class EnvelopeField(serializers.CharField):
    """A DSSE envelope in base64."""

    def to_internal_value(self, data: Any) -> Any:
        text = super().to_internal_value(data)
        try:
            envelope = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise serializers.ValidationError("This is not base64; send the envelope's bytes in base64.") from None
        if len(envelope) > ENVELOPE_MAX:
            raise serializers.ValidationError(f"The envelope is larger than {ENVELOPE_MAX} bytes.")
        return envelope


class LineageInputsField(serializers.DictField):
    """`{part: {entry: value}}` of exactly the four parts, all of it text."""

    child = serializers.DictField(
        child=serializers.CharField(max_length=4_096, allow_blank=True, trim_whitespace=False)
    )

    def to_internal_value(self, data: Any) -> Any:
        value = super().to_internal_value(data)
        if set(value) != set(lineage.PARTS):
            raise serializers.ValidationError(f"The parts must be exactly {', '.join(lineage.PARTS)}.")
        return value


class PublishIn(serializers.Serializer[Any]):
    digest = serializers.RegexField(r"^[0-9a-f]{128}$", required=False)
    manifest = EnvelopeField(max_length=ENVELOPE_MAX * 4 // 3 + 4)
    lineage_inputs = LineageInputsField()
    graph_hash = serializers.RegexField(r"^[0-9a-f]{64}$", required=False, allow_blank=True, default="")
    baseline_metrics = serializers.DictField(child=serializers.FloatField(), required=False, default=dict)
    precision = serializers.CharField(required=False, allow_blank=True, max_length=32, default="")
    device = serializers.CharField(required=False, max_length=32, default="any")


class BlobOut(serializers.ModelSerializer[StoredBlob]):
    class Meta:
        model = StoredBlob
        fields = ["digest", "total_bytes", "flat_sha3_512", "model_hash", "graph_hash", "uploaded_at"]


class AliasOut(serializers.ModelSerializer[Alias]):
    model = serializers.CharField(source="model.slug", read_only=True)
    version = serializers.IntegerField(source="version.number", read_only=True)

    class Meta:
        model = Alias
        fields = ["model", "name", "version", "revision"]


class AliasIn(serializers.Serializer[Any]):
    version = serializers.IntegerField(min_value=1)
    reason = serializers.CharField(max_length=1_000)
    expected_revision = serializers.IntegerField(required=False, min_value=0, allow_null=True, default=None)


class AliasMoveOut(serializers.ModelSerializer[AliasMove]):
    version = serializers.IntegerField(source="version.number", read_only=True)

    class Meta:
        model = AliasMove
        fields = ["version", "at", "actor_label", "reason", "rollout_id"]


class LineagePartOut(serializers.Serializer[Any]):
    part = serializers.CharField()
    same = serializers.BooleanField()
    before = serializers.CharField()
    after = serializers.CharField()
    added = serializers.ListField(child=serializers.CharField())
    removed = serializers.ListField(child=serializers.CharField())
    changed = serializers.ListField(child=serializers.CharField())
    look_at = serializers.CharField()


class LineageDiffOut(serializers.Serializer[Any]):
    before = serializers.IntegerField(source="before.number")
    after = serializers.IntegerField(source="after.number")
    sentence = serializers.CharField()
    graph_changed = serializers.BooleanField()
    parts = LineagePartOut(many=True)
