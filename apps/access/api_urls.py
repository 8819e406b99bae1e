"""REST addresses of this app, below /api/v1/."""

from django.urls import path

from apps.access import api

urlpatterns = [
    path("me", api.MeView.as_view()),
    path("tokens", api.TokenList.as_view()),
    path("tokens/<str:token_id>", api.TokenDetail.as_view()),
]
