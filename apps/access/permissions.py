"""What a request may do: its user's role in a team, narrowed by the token's scopes."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from apps.access.models import ApiToken, Scope


class HasScope(BasePermission):
    """Reads need `read`, writes the view's `write_scope`. Sessions carry every scope; services check roles."""

    code = "scope_missing"

    def has_permission(self, request: Request, view: Any) -> bool:
        if not request.user.is_authenticated:
            return False
        if not isinstance(request.auth, ApiToken):
            return True
        needed = Scope.READ if request.method in ("GET", "HEAD", "OPTIONS") else getattr(view, "write_scope", None)
        if needed in request.auth.scopes:
            return True
        wanted = f"the scope «{needed}»" if needed else "a person's session"
        self.message = f"The API token «{request.auth.name}» lacks {wanted}; create one that has it."
        return False
