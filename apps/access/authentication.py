"""API tokens (knox): `Authorization: Token …`."""

from __future__ import annotations

import re
from datetime import timedelta
from hmac import compare_digest

from django.db.models import Q, QuerySet
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from knox.auth import TokenAuthentication
from knox.crypto import hash_token
from knox.settings import CONSTANTS
from rest_framework.exceptions import AuthenticationFailed

from apps.access.models import ApiToken, User

USE_STEP = timedelta(minutes=1)  # a busy token writes its row once a minute, not once a request
_TOKEN = re.compile(rb"[A-Za-z0-9_]{32,128}")


class ApiTokenAuthentication(TokenAuthentication):  # type: ignore[misc]  # knox has no types
    """Authenticates by a scoped token; `request.auth` is the ApiToken and the user is confined to its team."""

    def authenticate_credentials(self, token: bytes) -> tuple[User, ApiToken]:
        """Find the token's row by its public beginning, compare digests in constant time.

        Unlike knox's own, this leaves expired rows in place, so that their owner sees what ended and when.
        """
        row = self._find(token)
        if row is None:
            raise AuthenticationFailed("The API token is unknown; it may have been revoked.", "token_unknown")
        now = timezone.now()
        if row.expiry is not None and row.expiry <= now:
            raise AuthenticationFailed(f"The API token «{row.name}» has expired; create a new one.", "token_expired")
        if not row.user.is_active:
            raise AuthenticationFailed("The API token's owner is no longer active.", "user_inactive")
        stale = Q(last_used_at__isnull=True) | Q(last_used_at__lt=now - USE_STEP)
        if row.last_used_at is None or row.last_used_at < now - USE_STEP:
            ApiToken.objects.filter(stale, pk=row.pk).update(last_used_at=now)
        row.user.confined_to = row.team_id
        return row.user, row

    def _find(self, token: bytes) -> ApiToken | None:
        if not _TOKEN.fullmatch(token):
            return None
        text = token.decode("ascii")
        digest = hash_token(text)
        rows: QuerySet[ApiToken] = ApiToken.objects.filter(token_key=text[: CONSTANTS.TOKEN_KEY_LENGTH])
        for row in rows.select_related("user"):
            if compare_digest(digest, row.digest):
                return row
        return None


class ApiTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Tells the OpenAPI document how tokens are sent."""

    target_class = "apps.access.authentication.ApiTokenAuthentication"
    name = "apiToken"
    priority = 1

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:  # noqa: ARG002 the base sets it
        return {
            "type": "apiKey",
            "in": "header",
            "name": "Authorization",
            "description": "`Token <secret>`; create one at /api/v1/tokens.",
        }
