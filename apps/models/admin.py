"""The registry, to look at: versions are immutable, and what changes goes through services."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from apps.models.models import Alias, AliasMove, Artifact, ModelVersion, RegisteredModel, TrustRoot


class LookOnly(admin.ModelAdmin):  # type: ignore[type-arg]  # generic in the stubs alone
    """Nothing is added, changed or deleted here."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(RegisteredModel)
class RegisteredModelAdmin(LookOnly):
    list_display = ["slug", "team", "task", "slo_latency_ms", "created_at"]


@admin.register(ModelVersion)
class ModelVersionAdmin(LookOnly):
    list_display = ["__str__", "state", "precision", "created_by", "published_at"]
    list_filter = ["state", "model"]
    list_select_related = ["model", "created_by"]


@admin.register(Artifact)
class ArtifactAdmin(LookOnly):
    list_display = ["__str__", "signed_by", "security_floor", "device", "created_at"]
    list_select_related = ["version__model"]


@admin.register(Alias)
class AliasAdmin(LookOnly):
    list_display = ["__str__", "version", "revision"]
    list_select_related = ["model", "version__model"]


@admin.register(AliasMove)
class AliasMoveAdmin(LookOnly):
    list_display = ["alias", "version", "at", "actor_label", "reason"]
    list_select_related = ["alias__model", "version__model"]


@admin.register(TrustRoot)
class TrustRootAdmin(LookOnly):
    list_display = ["version", "created_at"]
    fields = ("version", "created_at")
