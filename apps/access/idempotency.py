"""`Idempotency-Key`: a repeated write gives the first answer again and has no second effect."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.db import connection, transaction
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.models import ApiToken, IdempotencyKey, User
from apps.lib.errors import Conflict, DomainError

HEADER = "Idempotency-Key"
KEY_MAX = 200
Method = Callable[..., Response]


def idempotent(method: Method) -> Method:
    """Make an APIView's write method answer repeats of the same key with what it answered first.

    The stored answer commits together with the effect, so a crash leaves neither. Same key and another body: 422
    `idempotency_key_reused`. Same key while the first is at work: 409 `in_progress`. Errors are not stored: they
    changed nothing, so a repeat is judged anew. Without the header the method runs as usual.
    """

    @functools.wraps(method)
    def wrapper(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
        key = request.headers.get(HEADER, "")
        if not key:
            return method(view, request, *args, **kwargs)
        if len(key) > KEY_MAX or not key.isascii() or not key.isprintable():
            raise DomainError("bad_idempotency_key", f"{HEADER} must be 1 to {KEY_MAX} printable ASCII characters.")
        if not isinstance(request.user, User):
            raise TypeError("an idempotent view must require authentication")
        digest = _digest(request)
        with transaction.atomic():
            _lock(request.user, key)
            stored = IdempotencyKey.objects.filter(user=request.user, key=key).first()
            if stored is not None:
                return _replay(stored, digest)
            response = method(view, request, *args, **kwargs)
            if response.status_code < 400:
                _store(request.user, key, digest, response)
            return response

    return wrapper


def _digest(request: Request) -> bytes:
    # a token reaches into one team: what another token of the same person was answered is not for it
    team = request.auth.team_id if isinstance(request.auth, ApiToken) else ""
    line = f"{request.method} {request.get_full_path()} {team}\n".encode()
    try:
        body = request._request.body
    except RequestDataTooBig as large:
        raise DomainError(
            "body_too_large", "The body is larger than the server reads; send less.", status=413
        ) from large
    return hashlib.sha256(line + body).digest()


def _lock(user: User, key: str) -> None:
    """Take the transaction-scoped lock of (user, key). Raises Conflict while another request holds it."""
    raw = hashlib.sha256(b"idempotency\0" + user.pk.bytes + key.encode()).digest()
    with connection.cursor() as cursor:
        number = int.from_bytes(raw[:8], "big", signed=True)
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [number])
        (free,) = cursor.fetchone()
    if not free:
        raise Conflict("in_progress", "The first request with this Idempotency-Key is still at work; repeat it later.")


def _store(user: User, key: str, digest: bytes, response: Response) -> None:
    # through the renderer, so that a replay has the same text for dates and ids
    body = None if response.data is None else json.loads(JSONRenderer().render(response.data))
    IdempotencyKey.objects.create(user=user, key=key, request_sha256=digest, status=response.status_code, body=body)


def _replay(stored: IdempotencyKey, digest: bytes) -> Response:
    if bytes(stored.request_sha256) != digest:
        raise DomainError(
            "idempotency_key_reused",
            "This Idempotency-Key was used for another request; send a fresh key with a new request.",
            status=422,
        )
    return Response(stored.body, status=stored.status, headers={"Idempotency-Replayed": "true"})
