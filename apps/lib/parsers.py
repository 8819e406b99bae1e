"""Request bodies have a bound: what is larger is refused before it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from django.conf import settings
from rest_framework.parsers import JSONParser

from apps.lib.errors import DomainError


class BoundedJSONParser(JSONParser):
    """JSON of at most DATA_UPLOAD_MAX_MEMORY_SIZE bytes; raises DomainError (413) for more."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        request = (parser_context or {}).get("request")
        length = int(request.META.get("CONTENT_LENGTH") or 0) if request is not None else 0
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        if limit is not None and length > limit:
            raise DomainError(
                "body_too_large", f"The body has {length} bytes, at most {limit} are read; send less.", status=413
            )
        return super().parse(stream, media_type=media_type, parser_context=parser_context)
