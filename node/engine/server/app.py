"""Routes of the serving socket, and the life of one inference request."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from node.engine.errors import EngineError, RequestError
from node.engine.identity import Identity
from node.engine.model import ServedModel
from node.engine.preprocess import Prepared
from node.engine.scheduler import Job, Scheduler
from node.engine.server import oip
from node.engine.server.inference_log import InferenceLog, Record
from node.wire.http import HttpRequest, HttpResponse, refusal

# Set by the comparator, stripped from clients' requests by the gateway: a replay isn't a client's request, so it is not
# logged, and it waits for everybody.
REPLAY_HEADER = "x-farrier-replay"
QUEUE_HEADER = "x-farrier-queue-us"

_MODEL_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(ready|infer))?")
# Tokenising more than this takes long enough to be done beside the event loop, not in it.
_INLINE_BYTES = 16 * 1024
_CLIENT_CLOSED = 499


class App:
    """Answers requests for one model, each within `deadline_s`; `is_ready` follows the engine's state."""

    def __init__(
        self,
        identity: Identity,
        model: ServedModel,
        scheduler: Scheduler,
        log: InferenceLog,
        *,
        deadline_s: float = 3.0,
    ) -> None:
        self.identity = identity
        self.is_ready = False
        self._model = model
        self._scheduler = scheduler
        self._log = log
        self._deadline_s = deadline_s

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """The handler that the HTTP server calls."""
        if request.path == "/v2":
            return self._get(request, lambda: (200, {"name": "farrier-engine", "version": "2", "extensions": []}))
        if request.path == "/v2/health/live":
            return self._get(request, lambda: (200, {"live": True}))
        if request.path == "/v2/health/ready":
            return self._get(request, self._readiness)
        match = _MODEL_PATH.fullmatch(request.path)
        if match is None:
            return self._refuse(RequestError(404, "not_found", "There is nothing at this path; see GET /v2."))
        model, version, action = match.groups()
        if action == "infer":
            return await self._infer(request, model, version)
        try:
            self._check_model(model, version)
        except RequestError as error:
            return self._refuse(error)
        return self._get(request, self._readiness if action == "ready" else self._description)

    # reads

    def _get(self, request: HttpRequest, answer: Callable[[], tuple[int, dict[str, Any]]]) -> HttpResponse:
        if request.method != "GET":
            return self._refuse(RequestError(405, "wrong_method", "This path is read with GET."), {"allow": "GET"})
        status, value = answer()
        return HttpResponse.of_json(status, value, self.identity.headers)

    def _readiness(self) -> tuple[int, dict[str, Any]]:
        return (200 if self.is_ready else 503), {"name": self.identity.model, "ready": self.is_ready}

    def _description(self) -> tuple[int, dict[str, Any]]:
        identity = self.identity
        return 200, oip.describe(identity.model, identity.version, self._model.inputs, self._model.outputs)

    def _check_model(self, model: str, version: str | None) -> None:
        if model != self.identity.model or version not in {None, str(self.identity.version)}:
            mine = f"{self.identity.model} version {self.identity.version}"
            raise RequestError(404, "unknown_model", f"This engine serves {mine}, nothing else.")

    def _refuse(self, error: RequestError, headers: dict[str, str] | None = None) -> HttpResponse:
        return refusal(error.status, error.code, error.sentence, {**self.identity.headers, **(headers or {})})

    # inference

    async def _infer(self, request: HttpRequest, model: str, version: str | None) -> HttpResponse:
        record = Record(request, request.headers.get("x-request-id", "")[: oip.MAX_ID_CHARS])
        try:
            response = await self._answer(request, model, version, record)
        except RequestError as error:
            response = self._failure(record, error)
        except EngineError as error:
            response = self._failure(record, RequestError(500, error.code, error.sentence))
        except asyncio.CancelledError:
            record.status, record.error_code = _CLIENT_CLOSED, "client_closed"
            raise
        except Exception:
            record.status, record.error_code = 500, "internal_error"
            raise
        finally:
            if REPLAY_HEADER not in request.headers:
                self._log.add(record)
        return response

    def _failure(self, record: Record, error: RequestError) -> HttpResponse:
        record.status, record.error_code = error.status, error.code
        record.request_id = record.request_id or uuid.uuid4().hex
        retry = {"retry-after": "1"} if error.status in {429, 503} else {}
        return self._refuse(error, {**_id_header(record), **retry})

    async def _answer(self, request: HttpRequest, model: str, version: str | None, record: Record) -> HttpResponse:
        if request.method != "POST":
            raise RequestError(405, "wrong_method", "Inference requests are sent with POST.")
        self._check_model(model, version)
        parsed = oip.parse(
            request.body, self._model.inputs, self._model.outputs, max_items=self._model.limits.request_rows
        )
        # the gateway's id names the request everywhere else: it goes before the client's own
        record.request_id = record.request_id or parsed.id or uuid.uuid4().hex
        record.items, record.input_sha256 = parsed.items, parsed.sha256
        prepared = await self._prepare(parsed, len(request.body))
        record.tokens = prepared.tokens
        record.preprocess_s = time.monotonic() - request.received_s
        job = record.job = self._scheduler.submit(prepared, is_replay=REPLAY_HEADER in request.headers)
        await self._wait(job, request.received_s)
        return self._render(parsed, record, job)

    async def _prepare(self, parsed: oip.InferRequest, size_bytes: int) -> Prepared:
        if size_bytes <= _INLINE_BYTES:
            return self._model.prepare(parsed.inputs)
        return await asyncio.to_thread(self._model.prepare, parsed.inputs)

    async def _wait(self, job: Job, received_s: float) -> None:
        """Until the job is done; raises RequestError 503 `deadline_exceeded`."""
        loop = asyncio.get_running_loop()
        left_s = self._deadline_s - (time.monotonic() - received_s)
        timer = loop.call_later(max(left_s, 0.0), self._expire, job)
        try:
            await job.future
        finally:
            timer.cancel()
            if not job.future.done() or job.future.cancelled():
                self._scheduler.abandon(job)

    def _expire(self, job: Job) -> None:
        self._scheduler.abandon(job)
        if not job.future.done():
            sentence = f"The request was not answered within {self._deadline_s:g} s; try again later."
            job.future.set_exception(RequestError(503, "deadline_exceeded", sentence))

    def _render(self, parsed: oip.InferRequest, record: Record, job: Job) -> HttpResponse:
        started_s = time.monotonic()
        parameters: dict[str, Any] = {"digest": self.identity.digest, "lineage": self.identity.lineage_text}
        if job.prepared.is_truncated:
            parameters["truncated"] = True
        document = {
            "model_name": self.identity.model,
            "model_version": str(self.identity.version),
            "id": record.request_id,
            "parameters": parameters,
            "outputs": [oip.render_output(name, _gather(job, name)) for name in parsed.outputs],
        }
        queue_us = str(max(int((job.started_s - job.queued_s) * 1_000_000), 0))
        headers = {**self.identity.headers, **_id_header(record), QUEUE_HEADER: queue_us}
        response = HttpResponse.of_json(200, document, headers)
        record.status, record.render_s = 200, time.monotonic() - started_s
        return response


def _id_header(record: Record) -> dict[str, str]:
    # only what may stand in a header: ids from bodies can hold anything
    is_plain = record.request_id.isascii() and record.request_id.isprintable()
    return {"x-request-id": record.request_id} if record.request_id and is_plain else {}


def _gather(job: Job, name: str) -> np.ndarray | list[str]:
    """A request's own rows of an output, in order, out of the batches that they were computed in."""
    pieces = [part.result.outputs.values[name][part.start : part.stop] for part in job.parts]
    if len(pieces) == 1:
        return pieces[0]
    if isinstance(pieces[0], list):
        return [text for piece in pieces for text in piece]
    return np.concatenate([piece for piece in pieces if isinstance(piece, np.ndarray)])
