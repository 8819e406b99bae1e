"""A blocking HTTP client for unix sockets, with keep-alive."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path
        self._timeout_s = timeout_s

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._timeout_s)
        self.sock.connect(str(self._path))


@dataclass(frozen=True)
class Answer:
    """A response with its whole body; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body parsed; raises ValueError if it isn't JSON."""
        return json.loads(self.body)


class UnixClient:
    """Requests to one socket, one at a time, over a connection that is opened on demand and kept.

    `request` raises OSError or http.client.HTTPException when the server is away. With `reopens`, a kept connection
    that the server closed meanwhile is opened again once: ask only what may be asked twice.
    """

    def __init__(self, path: Path | str, *, timeout_s: float = 5.0, reopens: bool = True) -> None:
        self.path = Path(path)
        self._reopens = reopens
        self._timeout_s = timeout_s
        self._connection: _UnixConnection | None = None

    def __enter__(self) -> UnixClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def request(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}) -> Answer:
        """Send one request and read its answer."""
        is_kept = self._connection is not None
        try:
            return self._exchange(method, path, body, headers)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self.close()
            if not is_kept or not self._reopens:
                raise
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        return self._exchange(method, path, body, headers)

    def close(self) -> None:
        """Close the kept connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        if self._connection is None:
            self._connection = _UnixConnection(self.path, self._timeout_s)
        self._connection.request(method, path, body, dict(headers))
        response = self._connection.getresponse()
        answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        if response.will_close:
            self.close()
        return answer
