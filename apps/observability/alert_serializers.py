"""Shapes of the endpoints of alerts, silences and rules."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from apps.observability.alert_models import Alert, AlertRule, Silence

NOTE_MAX = 2_000


class MemberOut(serializers.Serializer[Any]):
    """A GPU that an alert is about. The expected band is expected ± 4 · scale."""

    gpu = serializers.CharField()
    index = serializers.IntegerField()
    metric = serializers.CharField(allow_blank=True)
    observed = serializers.FloatField(allow_null=True)
    expected = serializers.FloatField(allow_null=True)
    scale = serializers.FloatField(allow_null=True)
    z = serializers.FloatField(allow_null=True)
    kind = serializers.CharField(allow_blank=True)
    note = serializers.CharField(allow_blank=True)


class AlertOut(serializers.ModelSerializer[Alert]):
    team = serializers.CharField(source="team.slug", read_only=True)
    rule = serializers.CharField(source="rule_id", read_only=True)
    labels = serializers.DictField(child=serializers.CharField(), read_only=True)
    members = MemberOut(many=True, read_only=True)
    acknowledged_by = serializers.CharField(
        source="acknowledged_by.username", read_only=True, allow_null=True, default=None
    )
    owner = serializers.CharField(source="owner.username", read_only=True, allow_null=True, default=None)
    inhibited_by = serializers.UUIDField(source="inhibited_by_id", read_only=True, allow_null=True)
    silenced_by = serializers.UUIDField(source="silenced_by_id", read_only=True, allow_null=True)

    class Meta:
        model = Alert
        fields = [
            "id", "team", "rule", "entity_kind", "entity_id", "entity_name", "labels", "severity", "state", "revision",
            "summary", "reason", "simulated", "gpus", "members", "pending_at", "firing_at", "no_data_at",
            "resolved_at", "acknowledged_by", "acknowledged_at", "acknowledged_note", "owner", "inhibited_by",
            "silenced_by",
        ]  # fmt: skip


class AlertCommandIn(serializers.Serializer[Any]):
    note = serializers.CharField(max_length=NOTE_MAX, required=False, allow_blank=True, default="")
    expected_revision = serializers.IntegerField(
        min_value=0, required=False, allow_null=True, default=None, help_text="The revision you saw; 409 if stale."
    )


class SilenceOut(serializers.ModelSerializer[Silence]):
    team = serializers.CharField(source="team.slug", read_only=True)
    matchers = serializers.DictField(child=serializers.CharField(), read_only=True)
    author = serializers.CharField(source="author.username", read_only=True)
    ended_by = serializers.CharField(source="ended_by.username", read_only=True, allow_null=True, default=None)

    class Meta:
        model = Silence
        fields = [
            "id", "team", "matchers", "author", "reason", "starts_at", "expires_at", "ended_at", "ended_by",
            "end_reason",
        ]  # fmt: skip


class SilenceIn(serializers.Serializer[Any]):
    matchers = serializers.DictField(
        child=serializers.CharField(max_length=120),
        help_text=f"All must fit: {', '.join(Silence.MATCHABLE)}; values are exact.",
    )
    reason = serializers.CharField(max_length=NOTE_MAX)
    starts_at = serializers.DateTimeField(required=False, allow_null=True, default=None)
    expires_at = serializers.DateTimeField()


class SilenceEndIn(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=NOTE_MAX)


class AlertRuleOut(serializers.ModelSerializer[AlertRule]):
    class Meta:
        model = AlertRule
        fields = [
            "slug", "kind", "metric", "severity", "for_s", "keep_firing_s", "enabled", "description", "advice",
            "runbook_url",
        ]  # fmt: skip
