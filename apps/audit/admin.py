"""The log, to look at; parked deliveries may be sent again."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from apps.access.actors import actor_of
from apps.audit import services
from apps.audit.models import Checkpoint, Event, Outbox, Seal, Webhook
from apps.lib.look_only import LookOnly


@admin.register(Event)
class EventAdmin(LookOnly):
    list_display = ["id", "at", "actor_label", "verb", "object_label", "reason"]
    list_filter = ["actor_kind", "object_type"]
    date_hierarchy = "at"


@admin.register(Seal)
class SealAdmin(LookOnly):
    list_display = ["position", "event_id", "restore_epoch"]


@admin.register(Checkpoint)
class CheckpointAdmin(LookOnly):
    list_display = ["position", "at"]


@admin.register(Webhook)
class WebhookAdmin(LookOnly):
    list_display = ["url", "team", "topics", "enabled"]
    fields = ("team", "url", "topics", "enabled")


@admin.register(Outbox)
class OutboxAdmin(LookOnly):
    list_display = ["topic", "webhook", "created_at", "attempts", "due_at", "done_at", "parked_at", "last_error"]
    actions = ["send_again"]

    @admin.action(description="Send parked deliveries again")
    def send_again(self, request: HttpRequest, queryset: QuerySet[Outbox]) -> None:
        for row in queryset.filter(parked_at__isnull=False):
            services.resend(row=row, actor=actor_of(request), now=timezone.now())
