"""Query parameters, read with a sentence for those that make no sense."""

from __future__ import annotations

from datetime import UTC, datetime

from rest_framework.request import Request

from apps.lib.errors import DomainError


def int_param(request: Request, name: str) -> int:
    """Return a required whole number of the query. Raises DomainError."""
    text = request.query_params.get(name, "")
    if not text.isdecimal() or len(text) > 9:
        raise DomainError("bad_parameter", f"«?{name}=» must be a whole number, not «{text[:40]}».")
    return int(text)


def time_param(request: Request, name: str) -> datetime | None:
    """Return an ISO 8601 time of the query in UTC, None when it is left out. Raises DomainError."""
    text = request.query_params.get(name, "")
    if not text:
        return None
    try:
        # an unescaped «+» of a time zone arrives as a space
        moment = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        raise DomainError("bad_parameter", f"«?{name}=» must be a time such as 2030-01-31T12:00:00Z.") from None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
