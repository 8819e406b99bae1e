"""Addresses. Every app has urls.py (pages) and, where it has a REST side, api_urls.py."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("controlplane.page_urls")),
]
