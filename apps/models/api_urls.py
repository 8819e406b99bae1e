"""REST addresses of this app, below /api/v1/."""

from django.urls import path

from apps.models import api

urlpatterns = [
    path("models", api.ModelList.as_view()),
    path("models/<slug:slug>", api.ModelDetail.as_view()),
    path("models/<slug:slug>/versions:reserve", api.VersionReserve.as_view()),
    path("models/<slug:slug>/versions", api.VersionList.as_view()),
    path("models/<slug:slug>/versions/<int:number>:publish", api.VersionPublish.as_view()),
    path("models/<slug:slug>/versions/<int:number>", api.VersionDetailView.as_view()),
    path("models/<slug:slug>/lineage-diff", api.LineageDiffView.as_view()),
    path("models/<slug:slug>/aliases", api.AliasList.as_view()),
    path("models/<slug:slug>/aliases/<slug:name>", api.AliasDetail.as_view()),
    path("models/<slug:slug>/aliases/<slug:name>/history", api.AliasHistory.as_view()),
    path("models/<slug:slug>/aliases/<slug:name>/at", api.AliasAt.as_view()),
    path("artifacts/<str:digest>", api.ArtifactView.as_view()),
]
