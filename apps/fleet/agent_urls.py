"""`/agent/v1/…` as far as the fleet answers it; `wait` is answered by the live process."""

from __future__ import annotations

from django.urls import path, register_converter

from apps.fleet import agent_api


class DigestConverter:
    """128 hexadecimal characters: the root of an artifact's chunk tree."""

    regex = "[0-9a-f]{128}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(DigestConverter, "digest")

urlpatterns = [
    path("enrol", agent_api.enrol),
    path("renew", agent_api.renew),
    path("poll", agent_api.poll),
    path("root", agent_api.root),
    path("artifacts/<digest:digest>/manifest", agent_api.manifest),
    path("artifacts/<digest:digest>/leaves", agent_api.leaves),
    path("artifacts/<digest:digest>/data", agent_api.data),
]
