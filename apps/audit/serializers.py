"""Shapes of the audit endpoints."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from apps.audit.models import Event, Outbox, Webhook


class EventOut(serializers.ModelSerializer[Event]):
    actor = serializers.CharField(source="actor_label", read_only=True)
    link = serializers.SerializerMethodField(help_text="Position in the hash chain; null until it is sealed.")

    class Meta:
        model = Event
        fields = [
            "id", "at", "actor_kind", "actor", "verb", "object_type", "object_id", "object_label", "from_state",
            "to_state", "reason", "data", "link",
        ]  # fmt: skip

    def get_link(self, event: Event) -> int | None:
        seal = getattr(event, "seal", None)
        return seal.position if seal else None


class WebhookOut(serializers.ModelSerializer[Webhook]):
    team = serializers.SlugRelatedField(slug_field="slug", read_only=True)  # type: ignore[var-annotated]

    class Meta:
        model = Webhook
        fields = ["id", "team", "url", "topics", "enabled"]


class WebhookIn(serializers.Serializer[Any]):
    url = serializers.CharField(max_length=500)
    topics = serializers.ListField(child=serializers.CharField(max_length=64), required=False, default=list)


class WebhookCreated(WebhookOut):
    secret = serializers.CharField(read_only=True, help_text="Shown this once.")

    class Meta(WebhookOut.Meta):
        fields = [*WebhookOut.Meta.fields, "secret"]


class DeliveryOut(serializers.ModelSerializer[Outbox]):
    status = serializers.CharField(read_only=True, help_text="due, trying, delivered or parked.")

    class Meta:
        model = Outbox
        fields = ["id", "topic", "status", "attempts", "created_at", "due_at", "done_at", "parked_at", "last_error",
                  "payload"]  # fmt: skip
