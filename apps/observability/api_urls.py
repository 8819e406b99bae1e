"""REST addresses of this app, below /api/v1/."""

from django.urls import path

from apps.observability import api

urlpatterns = [
    path("feedback", api.FeedbackView.as_view()),
    path("requests/<str:request_id>", api.RequestDetail.as_view()),
]
