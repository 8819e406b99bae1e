"""Signing in, with a bound on guessing."""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Any

from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.forms import AuthenticationForm
from django.core.cache import cache
from django.core.exceptions import ValidationError
from django.http import HttpRequest

FAILURES_MAX = 20
WINDOW_S = 300


def _counter(request: HttpRequest | None, username: str) -> str:
    """Key of the count of failures on one name from one address; per process, so a multiple of it over all."""
    meta = request.META if request is not None else {}
    address = meta.get("HTTP_X_FORWARDED_FOR") or meta.get("REMOTE_ADDR", "")
    # as the form reads it, else every spelling of a name would have failures of its own
    name = unicodedata.normalize("NFKC", username).strip().lower()
    digest = hashlib.sha256(f"{address}\0{name}".encode()).hexdigest()
    return f"sign-in-{digest}"


class _Bounded:
    """Refuses even the right password after too many wrong ones; successes don't count."""

    request: HttpRequest | None
    data: Any

    def clean(self) -> dict[str, Any]:
        counter = _counter(self.request, str(self.data.get("username", "")))
        if cache.get(counter, 0) >= FAILURES_MAX:
            raise ValidationError(
                "There were too many wrong passwords for this name; wait five minutes and try again.", code="throttled"
            )
        try:
            cleaned: dict[str, Any] = super().clean()  # type: ignore[misc]
        except ValidationError:
            cache.add(counter, 0, WINDOW_S)
            cache.incr(counter)
            raise
        return cleaned


class SignInForm(_Bounded, AuthenticationForm):
    """Of the console."""

    error_messages = AuthenticationForm.error_messages | {
        "invalid_login": "No account has this name and password. Check both and try again."
    }


class AdminSignInForm(_Bounded, AdminAuthenticationForm):
    """Of the admin pages."""
