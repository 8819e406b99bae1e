"""What an HTTP handler sees and gives back."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

Headers = dict[str, str]


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One complete request: header names in lower case, `received_s` on the monotonic clock (its first byte)."""

    method: str
    path: str
    headers: Headers
    body: bytes
    received_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer with its whole body."""

    status: int
    body: bytes
    headers: Headers = field(default_factory=dict)

    @classmethod
    def of_json(cls, status: int, value: Any, headers: Headers | None = None) -> HttpResponse:
        """`value` as compact JSON; NaN and infinities are a ValueError, since JSON has none."""
        body = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()
        return cls(status, body, {"content-type": "application/json", **(headers or {})})


def refusal(status: int, code: str, sentence: str, headers: Headers | None = None) -> HttpResponse:
    """An error as every unix-socket server of a node answers it: one sentence and a stable code."""
    return HttpResponse.of_json(status, {"error": sentence, "code": code}, headers)


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]
