"""What other apps' pages show of the time series."""

from django.urls import path

from apps.observability import views

urlpatterns = [path("fragments/traffic/<slug:slug>", views.traffic, name="traffic")]
