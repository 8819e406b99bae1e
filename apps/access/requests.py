"""The type of request that pages get once sign-in is checked."""

from __future__ import annotations

from django.http import HttpRequest

from apps.access.models import User


class SignedIn(HttpRequest):
    """A request whose user is known to be signed in: what `apps.lib.console.page` hands to a view. For types only."""

    user: User  # narrower than Django's, which may be anonymous
