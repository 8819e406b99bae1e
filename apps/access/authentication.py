"""API tokens (knox): `Authorization: Token …`."""

from __future__ import annotations

from knox.auth import TokenAuthentication


class ApiTokenAuthentication(TokenAuthentication):  # type: ignore[misc]  # knox has no types
    """Authenticates by a scoped token; `request.auth` is the ApiToken."""
