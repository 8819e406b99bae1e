"""A health endpoint on its own socket and thread, so that load on the serving socket can't silence it."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

_CLIENT_TIMEOUT_S = 1.0
_MAX_REQUEST_BYTES = 8192
_RETRY_S = 0.1


class HealthServer:
    """Answers every request on `listener` with `snapshot()` as JSON. Clients are served one at a time.

    `snapshot` runs in the health thread: it must only read, and never wait for a lock that the serving side may hold.
    """

    def __init__(self, listener: socket.socket, snapshot: Callable[[], dict[str, Any]]) -> None:
        self._listener = listener
        self._snapshot = snapshot
        self._thread = threading.Thread(target=self._serve, name="health", daemon=True)

    def start(self) -> None:
        """Answer from now on, until the process ends."""
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                # out of descriptors, most likely: the next question may find one
                log.warning("a health client could not be accepted: %s", error)
                time.sleep(_RETRY_S)
                continue
            with client:
                client.settimeout(_CLIENT_TIMEOUT_S)
                try:
                    self._answer(client)
                except OSError as error:
                    log.debug("a health client went away: %s", error)

    def _answer(self, client: socket.socket) -> None:
        raw = b""
        while b"\r\n\r\n" not in raw:
            part = client.recv(4096)
            if not part or len(raw) > _MAX_REQUEST_BYTES:
                return
            raw += part
        body = json.dumps(self._snapshot()).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        client.sendall(head.encode() + b"connection: close\r\n\r\n" + body)
