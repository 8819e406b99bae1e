"""REST: `/api/v1/…` of every app, its OpenAPI document and the page that lets one try it."""

from __future__ import annotations

from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

V1 = [
    path("", include("apps.access.api_urls")),
    path("", include("apps.audit.api_urls")),
    path("", include("apps.models.api_urls")),
    path("", include("apps.fleet.api_urls")),
    path("", include("apps.observability.api_urls")),
    path("", include("apps.rollouts.api_urls")),
]

urlpatterns = [
    path("v1/", include(V1)),
    path("schema", SpectacularAPIView.as_view(), name="schema"),
    path(
        "docs",
        SpectacularSwaggerSplitView.as_view(url_name="schema", template_name="lib/api_docs.html"),
        name="api-docs",
    ),
]
