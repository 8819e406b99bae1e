"""Addresses. Every app has urls.py (pages) and, where it has a REST side, api_urls.py."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

from controlplane import health, metrics

urlpatterns: list[URLPattern | URLResolver] = [
    path("livez", health.livez),
    path("readyz", health.readyz),
    path("metrics", metrics.metrics, name="metrics"),
    path("api/", include("controlplane.api_urls")),
    path("agent/v1/", include("apps.fleet.agent_urls")),
    path("agent/v1/", include("apps.observability.agent_urls")),
    path("admin/", admin.site.urls),
    path("", include("controlplane.page_urls")),
]
