"""REST addresses of this app, below /api/v1/."""

from django.urls import path

from apps.fleet import api

urlpatterns = [
    path("pools", api.PoolList.as_view()),
    path("pools/<slug:slug>:set-approval", api.PoolApproval.as_view()),
    path("nodes", api.NodeList.as_view()),
    path("nodes/<slug:name>", api.NodeDetail.as_view()),
    *(path(f"nodes/<slug:name>:{verb}", api.NodeVerb.as_view(verb=verb)) for verb in api.VERBS),
    path("nodes/<slug:name>/gpus/<str:uuid>:remove", api.GpuRemoval.as_view()),
    path("join-tokens", api.JoinTokenList.as_view()),
]
