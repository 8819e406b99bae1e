"""The HTTP server on a unix socket, driven byte by byte."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from node.wire.http import HttpRequest, HttpResponse
from node.wire.listener import bind_unix
from node.wire.server import HttpServer, ServerLimits


@dataclass
class Echo:
    """Answers with what it got; a path that starts with /wait is answered when `gate` opens."""

    seen: list[HttpRequest] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    waiting: threading.Event = field(default_factory=threading.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        self.seen.append(request)
        if request.path == "/fail":
            raise RuntimeError("meant to fail")
        if request.path == "/bad-header":
            return HttpResponse(200, b"", {"x-split": "a\r\nb"})
        if request.path.startswith("/wait"):
            self.waiting.set()
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return HttpResponse.of_json(200, {"path": request.path, "body": request.body.decode()})


@dataclass
class Running:
    """A server in a thread of its own."""

    path: Path
    echo: Echo
    server: HttpServer
    loop: asyncio.AbstractEventLoop

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(10)
        client.connect(str(self.path))
        return client

    def open_gate(self) -> None:
        self.loop.call_soon_threadsafe(self.echo.gate.set)

    def drain(self) -> Future[int]:
        return asyncio.run_coroutine_threadsafe(self.server.drain(linger_s=0.2), self.loop)


@pytest.fixture
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("h") / "s.sock"
    echo = Echo()
    server = HttpServer(echo, ServerLimits(body_bytes=1000, request_read_s=0.3, discard_s=0.2))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(server.start(bind_unix(path)))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield Running(path, echo, server, loop)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(server.drain(linger_s=0, timeout_s=0))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def _read(client: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """One response."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        part = client.recv(65536)
        assert part, f"closed after {raw!r}"
        raw += part
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    while len(body) < int(headers.get("content-length", "0")):
        body += client.recv(65536)
    return int(lines[0].split()[1]), headers, body


def _is_closed(client: socket.socket) -> bool:
    return client.recv(1) == b""


POST = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"


def test_a_connection_is_kept_for_many_requests(running: Running) -> None:
    with running.connect() as client:
        for _ in range(3):
            client.sendall(POST)
            status, _, body = _read(client)
            assert (status, json.loads(body)) == (200, {"path": "/a", "body": "abc"})


def test_pipelined_requests_are_answered_in_order(running: Running) -> None:
    with running.connect() as client:
        client.sendall(b"".join(POST.replace(b"/a", f"/{n}".encode()) for n in range(5)))
        raw = b""
        while raw.count(b'"path"') < 5:
            raw += client.recv(65536)
    positions = [raw.index(f'"path":"/{n}"'.encode()) for n in range(5)]
    assert positions == sorted(positions)


def test_a_request_that_arrives_in_single_bytes_is_understood(running: Running) -> None:
    with running.connect() as client:
        for index in range(len(POST)):
            client.sendall(POST[index : index + 1])
        assert _read(client)[0] == 200


def test_chunked_bodies_are_put_together(running: Running) -> None:
    with running.connect() as client:
        client.sendall(b"POST /c HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        client.sendall(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        assert json.loads(_read(client)[2])["body"] == "abcde"


def test_expect_continue_is_answered_before_the_body(running: Running) -> None:
    with running.connect() as client:
        client.sendall(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 100 ")
        client.sendall(b"abc")
        assert _read(client)[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 1001\r\n\r\n",
        b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001 + b"\r\n",
    ],
)
def test_a_body_that_is_too_large_is_refused_and_the_connection_ends(running: Running, head: bytes) -> None:
    with running.connect() as client:
        client.sendall(head)
        status, headers, body = _read(client)
        assert (status, json.loads(body)["code"], headers["connection"]) == (413, "body_too_large", "close")
        client.sendall(b"x" * 2000)
        assert _is_closed(client)
    assert running.echo.seen == []


@pytest.mark.parametrize(
    "raw",
    [
        b"NONSENSE\r\n\r\n",
        b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /a HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc",
        b"POST /a HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nfill: " + b"x" * 100_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_and_the_connection_ends(running: Running, raw: bytes) -> None:
    with running.connect() as client:
        client.sendall(raw)
        status, headers, body = _read(client)
        assert 400 <= status < 500
        assert json.loads(body)["code"] == "bad_http"
        assert headers["connection"] == "close"
        assert _is_closed(client)
    assert running.echo.seen == []


def test_a_request_that_never_ends_is_given_up(running: Running) -> None:
    with running.connect() as client:
        client.sendall(POST[:-1])
        status, _, body = _read(client)
        assert (status, json.loads(body)["code"]) == (408, "request_too_slow")
        assert _is_closed(client)


def test_an_idle_connection_stays_open(running: Running) -> None:
    with running.connect() as client:
        client.sendall(POST)
        _read(client)
        threading.Event().wait(0.6)
        client.sendall(POST)
        assert _read(client)[0] == 200


def test_a_handler_that_fails_answers_500_and_the_connection_lives(running: Running) -> None:
    with running.connect() as client:
        client.sendall(POST.replace(b"/a", b"/fail"))
        status, _, body = _read(client)
        assert (status, json.loads(body)["code"]) == (500, "internal_error")
        client.sendall(POST)
        assert _read(client)[0] == 200


def test_an_answer_that_can_not_be_written_ends_the_connection(running: Running) -> None:
    with running.connect() as client:
        client.sendall(POST.replace(b"/a", b"/bad-header"))
        with pytest.raises((ConnectionResetError, AssertionError)):
            _read(client)
    with running.connect() as client:
        client.sendall(POST)
        assert _read(client)[0] == 200


def test_a_client_that_leaves_cancels_its_request(running: Running) -> None:
    with running.connect() as client:
        client.sendall(POST.replace(b"/a", b"/wait"))
        assert running.echo.waiting.wait(5)
    assert running.echo.cancelled.wait(5)


def test_connection_close_is_honoured(running: Running) -> None:
    with running.connect() as client:
        client.sendall(POST.replace(b"host: x", b"host: x\r\nconnection: close"))
        assert _read(client)[1]["connection"] == "close"
        assert _is_closed(client)


def test_a_flood_of_pipelined_requests_is_answered_without_being_hoarded(running: Running) -> None:
    count = 8000
    with running.connect() as client:
        client.sendall(POST.replace(b"/a", b"/wait"))
        assert running.echo.waiting.wait(5)
        sender = threading.Thread(target=client.sendall, args=(POST * count,))
        sender.start()
        running.open_gate()
        raw = 0
        tail = b""
        while raw < count + 1:
            part = client.recv(1 << 20)
            assert part
            raw += (tail + part).count(b'"path"') - tail.count(b'"path"')
            tail = (tail + part)[-5:]
        sender.join()
    assert len(running.echo.seen) == count + 1


def test_a_drain_answers_what_was_sent_and_closes_the_rest(running: Running) -> None:
    with running.connect() as idle, running.connect() as busy, running.connect() as late:
        idle.sendall(POST)
        _read(idle)
        busy.sendall(POST.replace(b"/a", b"/wait"))
        assert running.echo.waiting.wait(5)
        running.path.unlink()
        draining = running.drain()
        late.sendall(POST)
        status, headers, _ = _read(late)
        assert (status, headers["connection"]) == (200, "close")
        assert _is_closed(late)
        assert _is_closed(idle)
        running.open_gate()
        status, headers, _ = _read(busy)
        assert (status, headers["connection"]) == (200, "close")
        assert draining.result(5) == 0


def test_a_drain_takes_connections_that_wait_to_be_accepted(running: Running) -> None:
    clients = [running.connect() for _ in range(20)]
    running.path.unlink()
    draining = running.drain()
    for client in clients:
        client.sendall(POST)
    assert [_read(client)[0] for client in clients] == [200] * 20
    assert draining.result(5) == 0
    for client in clients:
        client.close()


def test_binding_replaces_a_stale_socket_and_nothing_else(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("b")
    bind_unix(folder / "s").close()
    bind_unix(folder / "s").close()
    (folder / "file").write_text("precious")
    with pytest.raises(OSError, match="no socket"):
        bind_unix(folder / "file")
    assert (folder / "file").read_text() == "precious"
    with pytest.raises(OSError, match="longer than 107 bytes"):
        bind_unix(folder / ("x" * 120))
