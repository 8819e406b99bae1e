"""Rate limits of the REST API, counted per process: generous, and a multiple of that over all of them."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView


class TokenThrottle(SimpleRateThrottle):
    """Making and ending API tokens, by user."""

    scope = "tokens"
    rate = "60/min"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:  # noqa: ARG002 the base sets it
        if request.method in ("GET", "HEAD", "OPTIONS"):
            return None
        ident = request.user.pk if request.user.is_authenticated else self.get_ident(request)
        return self.cache_format % {"scope": self.scope, "ident": ident}
