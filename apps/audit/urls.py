"""Pages of the audit log."""

from django.urls import path

from apps.audit import views

urlpatterns = [path("audit/", views.audit, name="audit")]
