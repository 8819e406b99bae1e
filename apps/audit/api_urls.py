"""REST addresses of this app, below /api/v1/."""

from django.urls import path

from apps.audit import api

urlpatterns = [
    path("audit", api.EventList.as_view()),
    path("webhooks", api.WebhookList.as_view()),
    path("webhooks/<uuid:webhook_id>", api.WebhookDetail.as_view()),
    path("webhooks/<uuid:webhook_id>/deliveries", api.DeliveryList.as_view()),
    path("webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>:resend", api.DeliveryResend.as_view()),
]
