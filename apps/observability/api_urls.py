"""REST addresses of this app, below /api/v1/."""

from django.urls import path

from apps.observability import alert_api, api

urlpatterns = [
    path("alerts", alert_api.AlertList.as_view()),
    path("alerts/<uuid:pk>", alert_api.AlertView.as_view()),
    path("alerts/<uuid:pk>:acknowledge", alert_api.Acknowledge.as_view()),
    path("alerts/<uuid:pk>:unacknowledge", alert_api.Unacknowledge.as_view()),
    path("alerts/<uuid:pk>:own", alert_api.Own.as_view()),
    path("alert-rules", alert_api.AlertRuleList.as_view()),
    path("silences", alert_api.SilenceList.as_view()),
    path("silences/<uuid:pk>:end", alert_api.SilenceEnd.as_view()),
    path("feedback", api.FeedbackView.as_view()),
    path("requests/<str:request_id>", api.RequestDetail.as_view()),
]
