"""`/agent/v1/…` as far as observability answers it."""

from __future__ import annotations

from django.urls import path

from apps.observability import agent_api

urlpatterns = [path("telemetry", agent_api.telemetry)]
