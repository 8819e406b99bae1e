"""Pages of the fleet, and what other apps' pages show of it."""

from django.urls import path

from apps.fleet import views

urlpatterns = [
    path("fleet/", views.fleet, name="fleet"),
    path("fleet/enrol", views.enrol, name="enrol"),
    path("fleet/nodes/<slug:name>/", views.node, name="node"),
    path("fleet/nodes/<slug:name>/<slug:action>", views.act, name="node-act"),
    path("fragments/where-runs/<uuid:model>", views.where_runs, name="where-runs"),
]
