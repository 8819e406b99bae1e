"""The registry, to look at: versions are immutable, and what changes goes through services."""

from __future__ import annotations

from django.contrib import admin

from apps.lib.look_only import LookOnly
from apps.models.models import Alias, AliasMove, Artifact, ModelVersion, RegisteredModel, TrustRoot


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
