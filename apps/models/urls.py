"""Pages of the registry."""

from django.urls import path

from apps.models import views

urlpatterns = [
    path("models/", views.models, name="models"),
    path("models/<slug:slug>/", views.model, name="model"),
    path("models/<slug:slug>/versions/<int:number>/", views.version, name="version"),
]
