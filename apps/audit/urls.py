"""Pages of the audit log, and of who is told what happens."""

from django.urls import path

from apps.audit import views, webhook_views

urlpatterns = [
    path("audit/", views.audit, name="audit"),
    path("webhooks/", webhook_views.webhooks, name="webhooks"),
    path("webhooks/<uuid:pk>/", webhook_views.webhook, name="webhook"),
    path("webhooks/<uuid:pk>/delete", webhook_views.delete_webhook, name="delete-webhook"),
    path("webhooks/<uuid:pk>/<uuid:delivery>/resend", webhook_views.resend, name="resend"),
]
