"""REST addresses of this app, below /api/v1/."""

from django.urls import path

from apps.rollouts import api

urlpatterns = [
    path("rollouts", api.RolloutList.as_view()),
    path("rollouts/<uuid:pk>", api.RolloutView.as_view()),
    path("rollouts/<uuid:pk>/evidence", api.EvidenceView.as_view()),
    path("rollouts/<uuid:pk>:approve", api.Approve.as_view()),
    path("rollouts/<uuid:pk>:reject", api.Reject.as_view()),
    path("rollouts/<uuid:pk>:abort", api.Abort.as_view()),
    path("rollouts/<uuid:pk>:pause", api.Pause.as_view()),
    path("rollouts/<uuid:pk>:resume", api.Resume.as_view()),
    path("holds", api.HoldList.as_view()),
    path("holds/<uuid:pk>:lift", api.HoldLift.as_view()),
    path("strategies", api.StrategyList.as_view()),
]
