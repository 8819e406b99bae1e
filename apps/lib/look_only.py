"""Admin pages of what only services may write."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest


class LookOnly(admin.ModelAdmin):  # type: ignore[type-arg]  # generic in the stubs alone
    """Nothing is added, changed or deleted here."""

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 Django fixes the signature
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False
