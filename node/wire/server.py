"""An HTTP/1.1 server for a bound socket: keep-alive, pipelining, limits, and a drain that loses nothing.

h11 decides what the bytes mean; this module moves them. A connection answers its requests one after another; what a
client pipelines waits in h11's buffer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from dataclasses import dataclass

import h11

from node.wire.http import Handler, HttpRequest, HttpResponse, refusal

log = logging.getLogger(__name__)

_READ_BYTES = 64 * 1024
_MAX_HEADER_BYTES = 16 * 1024
_MAX_PIPELINED_BYTES = 256 * 1024


@dataclass(frozen=True)
class ServerLimits:
    """What a client may send, and how long it may take over it.

    `discard_s`: how long the rest of a refused request is read and thrown away, so that its client gets to read why.
    """

    body_bytes: int = 8 << 20
    request_read_s: float = 10.0
    discard_s: float = 1.0


class HttpServer:
    """Serves `handler` on a bound unix socket, in the running event loop."""

    def __init__(self, handler: Handler, limits: ServerLimits = ServerLimits()) -> None:
        self.handler = handler
        self.limits = limits
        self.connections: set[_Connection] = set()
        self.is_draining = False
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Accept on `listener` (bound; listening is started here)."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), sock=listener, backlog=1024)

    async def drain(self, *, linger_s: float = 0.25, timeout_s: float = 10.0) -> int:
        """Answer everything that was sent, then close; returns how many requests were cut off by the time limit.

        The caller has removed the socket's path, so that no connection arrives any more. What waits in the accept queue
        is still taken. Until `linger_s` is over, idle connections stay open, because their clients may be writing a
        request this very moment; every answer from now on says `Connection: close`.
        """
        self.is_draining = True
        await asyncio.sleep(linger_s)
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_if_idle()
        deadline = time.monotonic() + timeout_s
        while self.connections and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        cut_off = len(self.connections)
        for connection in list(self.connections):
            connection.abort()
        return cut_off


class _Connection(asyncio.BufferedProtocol):
    """One client connection. States are h11's; `_task` is the request being answered."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEADER_BYTES)
        self._buffer = bytearray(_READ_BYTES)
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._started_s = 0.0
        self._is_discarding = False
        self._pipelined_bytes = 0

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - narrows the type of what asyncio promises
        self._transport = transport
        self._server.connections.add(self)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - asyncio's signature
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_discarding:
            return
        if self._started_s == 0.0:
            self._started_s = time.monotonic()
        # h11 copies what it keeps: the buffer is ours again afterwards
        self._http.receive_data(bytes(memoryview(self._buffer)[:nbytes]))
        if self._task is None:
            self._advance()
            return
        # Reading goes on meanwhile, because only a read notices that the client left; but not without end.
        self._pipelined_bytes += nbytes
        if self._pipelined_bytes > _MAX_PIPELINED_BYTES:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        # A peer that closed can't be told from one that only shut its writing half; nobody who asks through a gateway
        # does the latter, so the request is given up, and its rows don't keep others waiting.
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._server.connections.discard(self)
        self._stop_timer()
        if self._task is not None:
            self._task.cancel()

    # the server calls these

    def close_if_idle(self) -> None:
        """Close unless a request is being read or answered."""
        if self._task is None and self._request is None and self._started_s == 0.0:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection, whatever it is doing."""
        self._transport.abort()

    # reading

    def _advance(self) -> None:
        """Take events out of h11 until it needs more bytes, or a request is complete."""
        while self._task is None and not self._is_discarding:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse(error.error_status_hint, "bad_http", f"This is no HTTP/1.1 request: {error}.")
                return
            if event is h11.NEED_DATA:
                self._wait_for_more()
                return
            if isinstance(event, h11.Request):
                self._begin(event)
            elif isinstance(event, h11.Data):
                self._add(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._answer()
            else:
                return  # paused, or the peer has closed: nothing more can come of this

    def _wait_for_more(self) -> None:
        if self._http.they_are_waiting_for_100_continue:
            self._transport.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        if self._timer is None and self._started_s:
            self._timer = self._loop.call_later(self._server.limits.request_read_s, self._too_slow)

    def _begin(self, event: h11.Request) -> None:
        self._request = event
        self._body = bytearray()
        for name, value in event.headers:
            # h11 has checked that it is a number
            if name == b"content-length" and int(value) > self._server.limits.body_bytes:
                self._refuse_size()

    def _add(self, data: bytes) -> None:
        if len(self._body) + len(data) > self._server.limits.body_bytes:
            self._refuse_size()
            return
        self._body += data

    def _refuse_size(self) -> None:
        limit = self._server.limits.body_bytes
        self._refuse(
            413, "body_too_large", f"The request's body is larger than {limit} bytes; send fewer items at once."
        )

    def _too_slow(self) -> None:
        self._timer = None
        seconds = self._server.limits.request_read_s
        self._refuse(408, "request_too_slow", f"The request was not complete after {seconds:g} s.")

    # answering

    def _answer(self) -> None:
        self._stop_timer()
        event, started_s = self._request, self._started_s
        assert event is not None  # noqa: S101 - h11 ends a message only after its request
        self._request, self._started_s = None, 0.0
        request = HttpRequest(
            method=event.method.decode("ascii"),
            path=event.target.decode("latin-1").partition("?")[0],
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers},
            body=bytes(self._body),
            received_s=started_s,
        )
        self._task = self._loop.create_task(self._handle(request))

    async def _handle(self, request: HttpRequest) -> None:
        try:
            response = await self._server.handler(request)
        except Exception:
            log.exception("a handler failed on %s %s", request.method, request.path)
            response = refusal(500, "internal_error", "The server failed on this request; its log has the reason.")
        self._task = None
        try:
            self._send(response)
        except (h11.LocalProtocolError, UnicodeEncodeError):
            log.exception("the answer to %s %s can't be sent: its headers are no headers", request.method, request.path)
            self._transport.abort()
            return
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._continue()
        else:
            self._transport.close()

    def _continue(self) -> None:
        """Go on with what the client sent before it had its answer."""
        self._pipelined_bytes = len(self._http.trailing_data[0])
        if self._pipelined_bytes <= _MAX_PIPELINED_BYTES:
            self._transport.resume_reading()
        if self._pipelined_bytes:
            self._started_s = time.monotonic()
            self._advance()

    def _refuse(self, status: int, code: str, sentence: str) -> None:
        """Answer a request that can't be read to its end, then let go of the connection."""
        self._stop_timer()
        self._is_discarding = True
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self._send(refusal(status, code, sentence, {"connection": "close"}))
        self._loop.call_later(self._server.limits.discard_s, self._transport.close)

    def _send(self, response: HttpResponse) -> None:
        headers = {"content-length": str(len(response.body)), **response.headers}
        if self._server.is_draining:
            headers["connection"] = "close"
        parts = (
            h11.Response(status_code=response.status, headers=list(headers.items())),
            h11.Data(data=response.body),
            h11.EndOfMessage(),
        )
        self._transport.write(b"".join(self._http.send(part) or b"" for part in parts))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
