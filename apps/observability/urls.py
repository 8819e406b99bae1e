"""Charts and the data behind them, alerts and silences, and what other apps' pages show of the time series."""

from django.urls import path

from apps.observability import alert_views, chart_views, views

urlpatterns = [
    path("explore/", chart_views.explore, name="explore"),
    path("series.json", chart_views.series_json, name="series-json"),
    path("series.csv", chart_views.series_csv, name="series-csv"),
    path("alerts/", alert_views.alerts, name="alerts"),
    path("alerts/<uuid:pk>/", alert_views.alert, name="alert"),
    path("alerts/<uuid:pk>/<slug:action>", alert_views.act, name="alert-act"),
    path("silences/", alert_views.silences, name="silences"),
    path("silences/new", alert_views.new_silence, name="new-silence"),
    path("silences/<uuid:pk>/end", alert_views.end_silence, name="end-silence"),
    path("fragments/alerts/node/<slug:name>", alert_views.node_alerts, name="node-alerts"),
    path("fragments/traffic/<slug:slug>", views.traffic, name="traffic"),
    path("fragments/node-charts/<slug:name>", views.node_charts, name="node-charts"),
    path("fragments/node-gpus/<slug:name>", views.node_gpus, name="node-gpus"),
]
