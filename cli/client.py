"""The REST side of the command line: one client, errors as sentences, writes that may be repeated."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2

RETRY_STATUS = frozenset({502, 503, 504})
UPLOAD_PIECE_BYTES = 1 << 20


class ApiError(Exception):
    """The control plane said no. `code` is stable; the message is its sentence."""

    def __init__(self, status: int, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code


class Unreachable(Exception):
    """No answer, however often asked."""


class Client:
    """Talks to `/api/v1` with a scoped API token.

    Reads and writes are repeated on lost connections and gateway errors: a write carries an `Idempotency-Key`, so its
    repetition has no second effect.
    """

    def __init__(
        self, server: str, token: str, *, tries: int = 5, transport: httpx2.BaseTransport | None = None
    ) -> None:
        self.server = server.rstrip("/")
        self._tries = tries
        self._http = httpx2.Client(
            base_url=f"{self.server}/api/v1/",
            headers={"Authorization": f"Token {token}", "Accept": "application/json"},
            timeout=httpx2.Timeout(60.0, connect=5.0),
            transport=transport,
        )

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **params: Any) -> Any:
        """Return the JSON at `path`; raises ApiError or Unreachable."""
        return self._send("GET", path, params={key: value for key, value in params.items() if value is not None})

    def post(self, path: str, body: dict[str, Any] | list[Any]) -> Any:
        """Send a write and return its JSON answer; raises ApiError or Unreachable."""
        return self._send("POST", path, json=body, headers={"Idempotency-Key": str(uuid.uuid4())})

    def all(self, path: str, **params: Any) -> Iterator[dict[str, Any]]:
        """Yield every row of a paged list."""
        offset = 0
        while True:
            page = self.get(path, limit=200, offset=offset, **params)
            yield from page["results"]
            offset += len(page["results"])
            if page["next"] is None or not page["results"]:
                return

    def upload(self, digest: str, file: Path, sent: Callable[[int], None] | None = None) -> Any:
        """Stream an artifact to the store; `sent` is told the bytes of every piece."""
        size = file.stat().st_size

        def pieces() -> Iterator[bytes]:
            with file.open("rb") as handle:
                while piece := handle.read(UPLOAD_PIECE_BYTES):
                    yield piece
                    if sent is not None:
                        sent(len(piece))

        return self._send(
            "PUT",
            f"artifacts/{digest}",
            make_content=pieces,
            headers={"Content-Length": str(size), "Content-Type": "application/octet-stream"},
        )

    def _send(self, method: str, path: str, *, make_content: Any = None, **options: Any) -> Any:
        trouble = ""
        for attempt in range(self._tries):
            if attempt:
                time.sleep(min(0.25 * 2**attempt, 8.0))
            if make_content is not None:
                options["content"] = make_content()  # a fresh iterator: the last one is spent
            try:
                answer = self._http.request(method, path, **options)
            except httpx2.TransportError as lost:
                trouble = str(lost) or type(lost).__name__
                continue
            if answer.status_code in RETRY_STATUS:
                trouble = f"HTTP {answer.status_code}"
                continue
            return _read(answer)
        raise Unreachable(f"{self.server} does not answer ({trouble}); is it running, and is the address right?")


def _read(answer: httpx2.Response) -> Any:
    """Return the JSON of a good answer; raise ApiError with the sentence of a bad one."""
    if answer.is_success:
        return answer.json() if answer.content else None
    try:
        problem = answer.json()
        raise ApiError(answer.status_code, problem["code"], problem["detail"])
    except (ValueError, KeyError, TypeError):
        text = answer.text.strip().splitlines()
        raise ApiError(
            answer.status_code, "not_a_farrier", f"HTTP {answer.status_code}: {text[0][:200] if text else 'no text'}"
        ) from None
