"""The edge with real Caddy: which path goes where."""

import http.server
import os
import socketserver
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from controlplane.supervisor import procfs
from controlplane.supervisor.edge import find_caddy, http_problem, write_configuration
from controlplane.supervisor.layout import Layout
from controlplane.supervisor.logs import Terminal
from controlplane.supervisor.manager import Supervisor
from controlplane.supervisor.spec import Probe, ProcessSpec
from controlplane.supervisor.statefile import StateFile
from tests.supervisor.conftest import Home


class Backend(socketserver.ThreadingUnixStreamServer):
    """Answers every request with its own name and the request's path."""

    daemon_threads = True

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        super().__init__(str(path), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Backend

    def do_GET(self) -> None:
        body = f"{self.server.name} {self.path} {self.headers['X-Forwarded-Proto']}".encode()
        self.send_response(503 if self.path == "/broken" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Silent."""


@dataclass
class Edge:
    port: int

    def get(self, path: str) -> tuple[str, str]:
        """(body, Cache-Control) of a GET."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return answer.read().decode(), answer.headers.get("Cache-Control", "")


@pytest.fixture
def edge(home: Home) -> Iterator[Edge]:
    layout: Layout = home.layout
    layout.prepare()
    (layout.static / "vendor").mkdir(parents=True)
    (layout.static / "app.css").write_text("own")
    (layout.static / "vendor" / "htmx.js").write_text("vendored")
    port = procfs.free_port()
    supervisor = Supervisor(layout.logs, StateFile(layout.states), Terminal())
    command = (find_caddy(), "run", "--config", str(write_configuration(layout, "127.0.0.1", port)))
    ready = Probe(check=lambda: http_problem(port, "/static/app.css"))
    with Backend(layout.web_socket, "web") as web, Backend(layout.live_socket, "live") as live:
        try:
            supervisor.start([ProcessSpec("edge", command, 0, dict(os.environ), layout.home, ready)])
            yield Edge(port)
        finally:
            supervisor.stop_all()
            supervisor.close()
            web.shutdown()
            live.shutdown()


def test_paths_reach_their_process(edge: Edge) -> None:
    for path in ("/", "/rollouts/", "/agent/v1/poll", "/agent/v1/waiting", "/eventsheet"):
        assert edge.get(path)[0] == f"web {path} http"
    for path in ("/events", "/events/fleet", "/agent/v1/wait?after=3"):
        assert edge.get(path)[0] == f"live {path} http"


def test_static_files_are_cached_as_they_deserve(edge: Edge) -> None:
    assert edge.get("/static/app.css") == ("own", "public, max-age=0, must-revalidate")
    assert edge.get("/static/vendor/htmx.js") == ("vendored", "public, max-age=31536000, immutable")


def test_probe_says_what_is_wrong(edge: Edge, home: Home) -> None:
    assert http_problem(edge.port, "/livez") is None
    assert http_problem(edge.port, "/broken") == "answers 503"
    assert "No such file" in (http_problem(home.layout.run / "none.sock", "/") or "")
    assert "refused" in (http_problem(procfs.free_port(), "/") or "")
