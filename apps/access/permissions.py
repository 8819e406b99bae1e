"""What a request may do: its user's role in a team, narrowed by the token's scopes."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from apps.access.models import ApiToken, Scope


class HasScope(BasePermission):
    """Reads need `read`, writes the view's `write_scope`. Sessions carry every scope; services check roles."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if not request.user.is_authenticated:
            return False
        if not isinstance(request.auth, ApiToken):
            return True
        needed = Scope.READ if request.method in ("GET", "HEAD", "OPTIONS") else view.write_scope
        return needed in request.auth.scopes
