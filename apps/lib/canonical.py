"""One text for one value: what is hashed or signed must not depend on who serialised it."""

from __future__ import annotations

import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    """Return JSON as UTF-8 with sorted keys and no spaces. Raises TypeError for what JSON can't hold, NaN included."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()
