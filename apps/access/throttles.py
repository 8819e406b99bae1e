"""Rate limits where a stranger could guess. Counted per process: generous, and a multiple of that over all of them."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView


class SignInThrottle(SimpleRateThrottle):
    """Attempts to sign in on one name from one address: `SignInThrottle(username).allow_request(request, None)`."""

    scope = "sign_in"
    rate = "30/min"

    def __init__(self, username: str) -> None:
        self.username = username[:150].lower()
        super().__init__()

    def get_cache_key(self, request: Request, view: Any) -> str:  # noqa: ARG002 the base sets it
        return self.cache_format % {"scope": self.scope, "ident": f"{self.get_ident(request)}:{self.username}"}


class TokenThrottle(SimpleRateThrottle):
    """Making and ending API tokens, by user."""

    scope = "tokens"
    rate = "60/min"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:  # noqa: ARG002 the base sets it
        if request.method in ("GET", "HEAD", "OPTIONS"):
            return None
        ident = request.user.pk if request.user.is_authenticated else self.get_ident(request)
        return self.cache_format % {"scope": self.scope, "ident": ident}
