"""The decorator that lets only nodes into a view of the agent API, and answers every refusal as problem JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Concatenate, ParamSpec, TypeVar

from django.db import connection
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from pydantic import ValidationError

from apps.fleet import credentials, signed
from apps.fleet.models import Node
from apps.lib.errors import DomainError
from apps.lib.problems import problem
from protocol.messages import Message

P = ParamSpec("P")
M = TypeVar("M", bound=Message)
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


class NodeRequest(HttpRequest):
    """A request whose sender was proven: what views behind `signed_by_node` get."""

    node: Node
    now: datetime
    raw: bytes  # the whole body, at most as long as the view allows


NodeView = Callable[Concatenate[NodeRequest, P], HttpResponseBase]


def agent_view(method: str) -> Callable[[View[P]], View[P]]:
    """Make a plain view of the agent API: one method, no CSRF cookie, errors as problem JSON."""

    def decorate(view: View[P]) -> View[P]:
        @functools.wraps(view)
        def wrapper(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            if request.method != method:
                answer = problem(405, "method_not_allowed", f"{request.path} takes {method}, not {request.method}.")
                answer["Allow"] = method
                return answer
            try:
                return view(request, *args, **kwargs)
            except DomainError as refused:
                return _problem(refused)

        return csrf_exempt(wrapper)

    return decorate


def _problem(refused: DomainError) -> HttpResponse:
    body = problem(refused.status, refused.code, refused.sentence, **getattr(refused, "extra", {}))
    for name, value in getattr(refused, "headers", {}).items():
        body[name] = value
    return body


def signed_by_node(method: str, *, max_body_bytes: int = 0, renewing: bool = False) -> Callable[[NodeView[P]], View[P]]:
    """Let in only requests signed by a node that may talk, each once; `request.node` is that node.

    The order: length of the body (413), headers, protocol (426), signature, time, phase, generation, expiry, nonce.
    """

    def decorate(view: NodeView[P]) -> View[P]:
        @agent_view(method)
        @functools.wraps(view)
        def wrapper(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            _authenticate(request, max_body_bytes, renewing)
            return view(request, *args, **kwargs)  # type: ignore[arg-type]  # it carries node, now and raw from here on

        return wrapper

    return decorate


def _authenticate(request: HttpRequest, max_body_bytes: int, renewing: bool) -> None:
    now = timezone.now()
    raw = read_body(request, max_body_bytes)
    asked = signed.parse(request.method or "", request.get_full_path(), raw, request.headers)
    node = Node.objects.filter(pk=asked.node_id).first()
    credential = signed.Credential.of(node) if node is not None else None
    try:
        signed.check(asked, credential, now, renewing=renewing)
    except signed.NotAuthentic as refused:
        if refused.code != "generation_stale" or node is None or not _adopted(node, asked.fields.generation, now):
            raise
    assert node is not None  # noqa: S101 check() refused the unknown
    _spend_nonce(node, asked.nonce)
    if asked.fields.generation == node.credential_generation and not node.credential_used:
        credentials.mark_used(node.pk, asked.fields.generation)
        node.credential_used = True
    request.node, request.now, request.raw = node, now, raw  # type: ignore[attr-defined]


def _adopted(node: Node, generation: int, now: datetime) -> bool:
    if generation <= node.credential_generation or not credentials.adopt_generation(node.pk, generation, now):
        return False
    node.refresh_from_db()
    return True


def _spend_nonce(node: Node, nonce: bytes) -> None:
    """Raise NotAuthentic(nonce_replayed) when this node has used the nonce in the last three minutes."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO fleet_nonce (node_id, nonce) VALUES (%s, %s) ON CONFLICT DO NOTHING", [node.pk, nonce]
        )
        fresh = cursor.rowcount == 1
    if not fresh:
        raise signed.NotAuthentic("nonce_replayed", "This very request was made before; sign every request anew.")


def read_body(request: HttpRequest, max_bytes: int) -> bytes:
    """Return the body. Raises DomainError(body_too_long, 413) before reading more than `max_bytes`."""
    stated = request.META.get("CONTENT_LENGTH") or "0"
    if not stated.isdigit() or int(stated) > max_bytes:
        raise DomainError(
            "body_too_long", f"{request.path} takes at most {max_bytes} bytes, {stated} were announced.", status=413
        )
    return request.read(max_bytes) if int(stated) else b""


def parse_message(kind: type[M], raw: bytes) -> M:
    """Parse a JSON body. Raises DomainError(bad_message) that names the field."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as bad:
        first = bad.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "its start"
        raise DomainError("bad_message", f"{kind.__name__} is malformed at {where}: {first['msg']}.") from None


def answer(message: Message) -> HttpResponse:
    """Return a message as JSON."""
    return HttpResponse(message.model_dump_json(), content_type="application/json")
