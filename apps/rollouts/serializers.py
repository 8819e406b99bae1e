"""Shapes of the endpoints of rollouts."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.rollouts.models import Approval, Evidence, EvidenceSnapshot, Hold, Participant, Rollout, Stage, Strategy

REASON_MAX = 4_000


class StageOut(serializers.ModelSerializer[Stage]):
    class Meta:
        model = Stage
        fields = [
            "index", "kind", "params", "state", "attempt", "started_at", "ready_at", "deadline", "finished_at",
        ]  # fmt: skip


class RolloutOut(serializers.ModelSerializer[Rollout]):
    model = serializers.CharField(source="model.slug", read_only=True)
    version = serializers.IntegerField(source="version.number", read_only=True)
    baseline = serializers.IntegerField(source="baseline.number", read_only=True, allow_null=True, default=None)
    digest = serializers.CharField(source="artifact.digest", read_only=True)
    pool = serializers.CharField(source="pool.slug", read_only=True)
    strategy = serializers.CharField(source="strategy.slug", read_only=True, allow_null=True, default=None)
    requested_by = serializers.CharField(source="requested_by.username", read_only=True)
    stages = StageOut(many=True, read_only=True)

    class Meta:
        model = Rollout
        fields = [
            "id", "number", "model", "version", "baseline", "digest", "pool", "strategy", "phase", "pause_reason",
            "decision", "revision", "stage_index", "reason", "requested_by", "requested_via", "phase_deadline",
            "created_at", "finished_at", "stages",
        ]  # fmt: skip


class ParticipantOut(serializers.ModelSerializer[Participant]):
    node = serializers.CharField(source="node.name", read_only=True)
    previous = serializers.IntegerField(source="previous.number", read_only=True, allow_null=True, default=None)

    class Meta:
        model = Participant
        fields = ["node", "previous", "excluded_reason", "excluded_at"]


class ApprovalOut(serializers.ModelSerializer[Approval]):
    stage = serializers.IntegerField(source="stage.index", read_only=True)
    user = serializers.CharField(source="user.username", read_only=True)
    snapshot = serializers.CharField(source="snapshot.sha256", read_only=True)

    class Meta:
        model = Approval
        fields = ["stage", "attempt", "approve", "user", "reason", "snapshot", "at"]


class RolloutDetail(RolloutOut):
    participants = ParticipantOut(many=True, read_only=True)
    approvals = ApprovalOut(many=True, read_only=True)

    class Meta(RolloutOut.Meta):
        fields = [*RolloutOut.Meta.fields, "plan_sha256", "participants", "approvals"]


class EvidenceOut(serializers.ModelSerializer[Evidence]):
    stage = serializers.IntegerField(source="stage.index", read_only=True)
    kind = serializers.CharField(source="stage.kind", read_only=True)

    class Meta:
        model = Evidence
        fields = [
            "stage", "kind", "attempt", "metric", "required", "verdict", "unit", "baseline", "candidate", "estimate",
            "low", "high", "margin", "better", "samples", "needed", "sentence", "detail", "updated_at",
        ]  # fmt: skip


class SnapshotOut(serializers.ModelSerializer[EvidenceSnapshot]):
    stage = serializers.IntegerField(source="stage.index", read_only=True)

    class Meta:
        model = EvidenceSnapshot
        fields = ["id", "stage", "attempt", "sha256", "plan_sha256", "created_at"]


class EvidencePage(serializers.Serializer[Any]):
    results = EvidenceOut(many=True)
    snapshots = SnapshotOut(many=True)


class RolloutIn(serializers.Serializer[Any]):
    model = serializers.SlugField(max_length=63)
    version = serializers.IntegerField(min_value=1)
    pool = serializers.SlugField(max_length=63, default="default")
    strategy = serializers.SlugField(max_length=63, required=False)
    stages = serializers.ListField(child=serializers.DictField(), required=False, max_length=20)
    reason = serializers.CharField(max_length=REASON_MAX)


class CommandIn(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=REASON_MAX)
    expected_revision = serializers.IntegerField(
        min_value=0,
        required=False,
        allow_null=True,
        default=None,
        help_text="The revision you decided on; 409 if stale.",
    )


class HoldOut(serializers.ModelSerializer[Hold]):
    model = serializers.CharField(source="version.model.slug", read_only=True)
    version = serializers.IntegerField(source="version.number", read_only=True)
    rollout = serializers.IntegerField(source="rollout.number", read_only=True)
    active = serializers.SerializerMethodField()
    lifted_by = serializers.CharField(source="lifted_by.username", read_only=True, allow_null=True, default=None)

    class Meta:
        model = Hold
        fields = [
            "id", "model", "version", "digest", "rollout", "reason", "placed_at", "active", "lifted_at", "lifted_by",
            "lift_reason",
        ]  # fmt: skip

    @extend_schema_field(OpenApiTypes.BOOL)
    def get_active(self, hold: Hold) -> bool:
        return hold.lifted_at is None


class HoldIn(serializers.Serializer[Any]):
    model = serializers.SlugField(max_length=63)
    version = serializers.IntegerField(min_value=1)
    reason = serializers.CharField(max_length=REASON_MAX)


class LiftIn(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=REASON_MAX)


class StrategyOut(serializers.ModelSerializer[Strategy]):
    name = serializers.CharField(source="slug", read_only=True)
    team = serializers.CharField(source="team.slug", read_only=True)

    class Meta:
        model = Strategy
        fields = ["id", "name", "team", "description", "stages", "created_at"]


class StrategyIn(serializers.Serializer[Any]):
    name = serializers.SlugField(max_length=63)
    description = serializers.CharField(required=False, allow_blank=True, default="", max_length=1_000)
    stages = serializers.ListField(child=serializers.DictField(), min_length=1, max_length=20)
