"""Addresses of the console's pages."""

from __future__ import annotations

from django.urls import include, path

from controlplane import home

urlpatterns = [
    path("", home.home, name="home"),
    path("theme", home.theme, name="theme"),
    path("", include("apps.access.urls")),
    path("", include("apps.models.urls")),
    path("", include("apps.rollouts.urls")),
    path("", include("apps.fleet.urls")),
    path("", include("apps.observability.urls")),
    path("", include("apps.audit.urls")),
]
