"""Shapes of the fleet's endpoints."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework import serializers

from apps.fleet import selectors
from apps.fleet.models import Condition, DesiredDeployment, Gpu, JoinToken, Node, Pool, Refusal


class PoolOut(serializers.ModelSerializer[Pool]):
    nodes = serializers.IntegerField(source="node_count", read_only=True)

    class Meta:
        model = Pool
        fields = ["slug", "description", "auto_accept", "requires_approval", "poll_interval_s", "nodes"]


class PoolApprovalIn(serializers.Serializer[Any]):
    requires_approval = serializers.BooleanField()
    reason = serializers.CharField(max_length=2_000)


class ConditionOut(serializers.ModelSerializer[Condition]):
    class Meta:
        model = Condition
        fields = ["type", "status", "reason", "message", "since"]


class RefusalOut(serializers.ModelSerializer[Refusal]):
    class Meta:
        model = Refusal
        fields = ["code", "reason", "sequence", "digest", "at"]


class GpuOut(serializers.ModelSerializer[Gpu]):
    class Meta:
        model = Gpu
        fields = ["uuid", "index", "name", "memory_bytes", "simulated", "health", "health_reason", "health_since"]


class DeploymentOut(serializers.Serializer[Any]):
    """A desired deployment beside what the node last said of it."""

    id = serializers.UUIDField()
    model = serializers.CharField()
    version = serializers.IntegerField()
    digest = serializers.CharField()
    role = serializers.CharField()
    weight = serializers.IntegerField()
    mirror_percent = serializers.IntegerField()
    rollout = serializers.UUIDField(allow_null=True)
    state = serializers.CharField()
    serving = serializers.BooleanField()
    weight_in_force = serializers.IntegerField()
    reason_code = serializers.CharField()
    reason = serializers.CharField()
    warmup_ms = serializers.FloatField(allow_null=True)
    since = serializers.DateTimeField(allow_null=True)


def deployment_row(node: Node, desired: DesiredDeployment) -> dict[str, Any]:
    """Return what DeploymentOut shows, from what `selectors.nodes` prefetched."""
    status = selectors.deployment_status(node, desired)
    return {
        "id": desired.pk,
        "model": desired.model.slug,
        "version": desired.version.number,
        "digest": desired.artifact.digest,
        "role": desired.role,
        "weight": desired.weight,
        "mirror_percent": desired.mirror_percent,
        "rollout": desired.rollout_id,
        "state": status.state.value,
        "serving": status.serving,
        "weight_in_force": status.weight_in_force,
        "reason_code": status.reason_code,
        "reason": status.reason,
        "warmup_ms": status.warmup_ms,
        "since": status.since,
    }


class NodeOut(serializers.ModelSerializer[Node]):
    pool = serializers.CharField(source="pool.slug", read_only=True)
    overdue = serializers.SerializerMethodField(help_text="Silent for three poll intervals.")
    in_sync = serializers.SerializerMethodField(help_text="Runs and routes exactly what its newest assignment says.")
    deployments = serializers.SerializerMethodField()
    conditions = ConditionOut(many=True, read_only=True)

    class Meta:
        model = Node
        fields = [
            "id", "name", "pool", "zone", "labels", "hostname", "phase", "revision", "agent_version", "gateway_url",
            "last_seen_at", "overdue", "in_sync", "deployments", "conditions",
        ]  # fmt: skip

    def get_overdue(self, node: Node) -> bool:
        return selectors.overdue(node, self.context.get("now") or timezone.now())

    def get_in_sync(self, node: Node) -> bool:
        return selectors.in_sync(node)

    def get_deployments(self, node: Node) -> list[dict[str, Any]]:
        rows = [deployment_row(node, desired) for desired in node.desired.all()]
        return list(DeploymentOut(rows, many=True).data)


class NodeDetailOut(NodeOut):
    refusals = serializers.SerializerMethodField()
    gpus = GpuOut(many=True, read_only=True)
    sequence = serializers.SerializerMethodField(help_text="Of its signed assignment; null before the first.")

    class Meta(NodeOut.Meta):
        fields = [
            *NodeOut.Meta.fields, "refusals", "gpus", "hardware", "sequence", "observed_sequence", "clock_offset_s",
            "credential_generation", "credential_expires_at", "created_at",
        ]  # fmt: skip

    def get_refusals(self, node: Node) -> list[dict[str, Any]]:
        return list(RefusalOut(selectors.refusals(node), many=True).data)

    def get_sequence(self, node: Node) -> int | None:
        assignment = selectors.assignment_of(node)
        return assignment.sequence if assignment is not None else None


class ReasonIn(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=1_000)


class VerbIn(ReasonIn):
    expected_revision = serializers.IntegerField(
        required=False, allow_null=True, default=None, min_value=0, help_text="409 if the node has moved on since."
    )


class JoinTokenOut(serializers.ModelSerializer[JoinToken]):
    pool = serializers.CharField(source="pool.slug", read_only=True)
    created_by = serializers.CharField(source="created_by.username", read_only=True)

    class Meta:
        model = JoinToken
        fields = ["id", "pool", "node_name", "created_by", "created_at", "expires_at"]


class JoinTokenIn(serializers.Serializer[Any]):
    pool = serializers.CharField(max_length=63)
    node_name = serializers.RegexField(r"^[a-z0-9-]{1,63}$", required=False, allow_blank=True, default="")


class JoinTokenCreated(serializers.Serializer[Any]):
    token = serializers.CharField(help_text="Shown once: hand it to the host that is to join.")
    expires_at = serializers.DateTimeField()
