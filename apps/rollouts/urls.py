"""Pages of rollouts and holds, and what other apps' pages show of them."""

from django.urls import path

from apps.rollouts import views

urlpatterns = [
    path("rollouts/", views.rollouts, name="rollouts"),
    path("rollouts/new", views.new_rollout, name="new-rollout"),
    path("rollouts/<uuid:pk>/", views.rollout, name="rollout"),
    path("rollouts/<uuid:pk>/<slug:action>", views.act, name="rollout-act"),
    path("holds/", views.holds, name="holds"),
    path("holds/<uuid:pk>/lift", views.lift, name="lift-hold"),
    path("fragments/node-rollouts/<slug:name>", views.node_rollouts, name="node-rollouts"),
    path("fragments/version-rollouts/<uuid:version>", views.version_rollouts, name="version-rollouts"),
]
