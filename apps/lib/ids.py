"""Keys: UUIDv7, so that rows sort by birth and inserts stay at the right edge of the index."""

from __future__ import annotations

import uuid

import uuid_utils


def uuid7() -> uuid.UUID:
    """Return a fresh UUIDv7 (RFC 9562 §5.7)."""
    return uuid.UUID(bytes=uuid_utils.uuid7().bytes)
