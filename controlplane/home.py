"""The start page and what every page's frame shows."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest


def shell(request: HttpRequest) -> dict[str, Any]:
    """Context of the frame around every page."""
    return {"path": request.path}
