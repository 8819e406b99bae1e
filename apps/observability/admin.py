"""Alert rules may be edited here; alerts and silences are to look at: what changes them goes through services."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils import timezone

from apps.access.actors import actor_of
from apps.audit.transitions import record
from apps.lib.look_only import LookOnly
from apps.observability.models import Alert, AlertNotice, AlertRule, Silence


@admin.register(AlertRule)
class AlertRuleAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic in the stubs alone
    """The set of rules is the product's; what each one does is the installation's. Every edit goes into the audit."""

    list_display = ["slug", "kind", "severity", "for_s", "keep_firing_s", "enabled"]
    readonly_fields = ["slug", "kind", "metric"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: AlertRule, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        data = {name: getattr(obj, name) for name in form.changed_data}
        record(obj, "alert_rule.changed", actor=actor_of(request), now=timezone.now(), data=data)


@admin.register(Alert)
class AlertAdmin(LookOnly):
    list_display = ["__str__", "state", "severity", "pending_at", "firing_at", "resolved_at", "acknowledged_by"]
    list_filter = ["state", "severity", "rule"]
    list_select_related = ["acknowledged_by"]


@admin.register(AlertNotice)
class AlertNoticeAdmin(LookOnly):
    list_display = ["rule", "entity_kind", "entity_id", "state", "again", "at"]


@admin.register(Silence)
class SilenceAdmin(LookOnly):
    list_display = ["__str__", "author", "reason", "starts_at", "expires_at", "ended_at"]
    list_select_related = ["author"]
