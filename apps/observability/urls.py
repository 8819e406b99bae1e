"""Charts and the data behind them, and what other apps' pages show of the time series."""

from django.urls import path

from apps.observability import chart_views, views

urlpatterns = [
    path("explore/", chart_views.explore, name="explore"),
    path("series.json", chart_views.series_json, name="series-json"),
    path("series.csv", chart_views.series_csv, name="series-csv"),
    path("fragments/traffic/<slug:slug>", views.traffic, name="traffic"),
    path("fragments/node-charts/<slug:name>", views.node_charts, name="node-charts"),
    path("fragments/node-gpus/<slug:name>", views.node_gpus, name="node-gpus"),
]
