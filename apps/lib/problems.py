"""RFC 9457 problem documents: the one place where errors become HTTP answers of the REST API."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.db import DataError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import exception_handler

from apps.lib.errors import DomainError

log = logging.getLogger("farrier.web")
CONTENT_TYPE = "application/problem+json"
MACHINES = ("/api/", "/agent/")
RETRY_AFTER_S = 2
BAD_VALUE = "A value in the request can't be stored or compared; look for NUL characters and huge numbers."


def problem(status: int, code: str, sentence: str, **extra: Any) -> JsonResponse:
    """Return a problem document outside DRF (agent API, streaming views)."""
    body = {"title": code.replace("_", " "), "status": status, "detail": sentence, "code": code, **extra}
    return JsonResponse(body, status=status, content_type=CONTENT_TYPE)


class DatabaseAway:
    """Middleware: a database that restarts or fails over costs 503 and another try, which CI and agents do by
    themselves, not 500 as a bug does.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer for a view that lost the database; None for any other error."""
        if not isinstance(exception, OperationalError | InterfaceError):
            return None
        log.warning("%s: the database is away: %s", request.path, str(exception).partition("\n")[0])
        sentence = "The database does not answer; try again in a few seconds."
        if request.path.startswith(MACHINES):
            answer: HttpResponse = problem(503, "database_away", sentence)
        else:
            answer = HttpResponse(sentence, status=503, content_type="text/plain; charset=utf-8")
        answer["Retry-After"] = str(RETRY_AFTER_S)
        return answer


class BadValue:
    """Middleware: what PostgreSQL can't hold (a NUL character, a number beyond its type) is the sender's fault: 400."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer for a view whose query the database could not read; None for any other error."""
        if not isinstance(exception, DataError):
            return None
        log.warning("%s: the database can't hold a value: %s", request.path, str(exception).partition("\n")[0])
        if request.path.startswith(MACHINES):
            return problem(400, "bad_value", BAD_VALUE)
        return HttpResponse(BAD_VALUE, status=400, content_type="text/plain; charset=utf-8")


def _sentence(detail: Any, path: str = "") -> str:
    """Flatten DRF's nested validation errors into one sentence."""
    if isinstance(detail, dict):
        return " ".join(_sentence(value, f"{path}.{key}".strip(".")) for key, value in detail.items())
    if isinstance(detail, list):
        return " ".join(_sentence(value, path) for value in detail)
    return f"{path}: {detail}" if path and path != "detail" else str(detail)


def _code(exc: Exception) -> str:
    """Return the error's own code; what a serializer finds wrong, field by field, is `invalid`."""
    if not isinstance(exc, exceptions.APIException):
        return "error"
    codes = exc.get_codes()
    return codes if isinstance(codes, str) else str(exc.default_code)


def handle(exc: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler: every error leaves as a problem document."""
    if isinstance(exc, DomainError):
        status, code, sentence = exc.status, exc.code, exc.sentence
        headers: dict[str, str] = {}
    elif isinstance(exc, DataError):
        status, code, sentence, headers = 400, "bad_value", BAD_VALUE, {}
    elif isinstance(exc, Http404):
        status, code, sentence, headers = 404, "not_found", "There is nothing at this address.", {}
    else:
        answer = exception_handler(exc, context)
        if answer is None:
            return None
        status = answer.status_code
        code, sentence = _code(exc), _sentence(answer.data)
        headers = {key: answer[key] for key in ("WWW-Authenticate", "Retry-After") if key in answer}
    body = {"title": code.replace("_", " "), "status": status, "detail": sentence, "code": code}
    return Response(body, status=status, headers=headers, content_type=CONTENT_TYPE)
