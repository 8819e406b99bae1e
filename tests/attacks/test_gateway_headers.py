"""What a client's headers may make the gateway do: nothing that its operator did not configure."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from node.agent import routes
from node.agent.gateway import find_envoy
from node.agent.planner import Key, ModelRoute, Share

MODEL, DIGEST = "digits", "ab" * 64


class Engine(ThreadingUnixStreamServer):
    """Stands where an engine's socket is; keeps the headers of each request."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        self.got: list[dict[str, str]] = []
        super().__init__(str(path), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Engine

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append({name.lower(): value for name, value in self.headers.items()})
        time.sleep(0.05)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def address_string(self) -> str:
        return "gateway"

    def log_message(self, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    server = Engine(tmp_path_factory.mktemp("e") / "s")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def port(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The gateway's port, with the product's own configuration."""
    folder = tmp_path_factory.mktemp("g")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    gateway = routes.Gateway("node-1", "127.0.0.1", port, folder / "a", folder / "r.json", folder / "c.json")
    key = Key(MODEL, DIGEST)
    table = routes.route_table([ModelRoute(MODEL, (Share(key, 100),), None)], node="node-1", version="1")
    gateway.routes_file.write_text(json.dumps(table))
    clusters = routes.clusters({key: Path(str(engine.server_address))}, folder / "nobody", "1")
    gateway.clusters_file.write_text(json.dumps(clusters))
    (folder / "bootstrap.json").write_text(json.dumps(routes.bootstrap(gateway)))
    command = [find_envoy(), "-c", str(folder / "bootstrap.json"), "--concurrency", "1", "--disable-hot-restart"]
    with subprocess.Popen([*command, "--log-level", "error"]) as process:
        try:
            _await(port)
            yield port
        finally:
            process.kill()


def _await(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the gateway does not listen")


def ask(port: int, path: str = f"/v2/models/{MODEL}/infer", **headers: str) -> int:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    client.request("POST", path, b"{}", {name.replace("_", "-"): value for name, value in headers.items()})
    answer = client.getresponse()
    answer.read()
    client.close()
    return answer.status


@pytest.mark.parametrize("extra", [{}, {"x_forwarded_for": "10.0.0.1"}, {"x_forwarded_for": "127.0.0.1"}])
def test_a_client_can_not_have_one_request_computed_many_times(
    engine: Engine, port: int, extra: dict[str, str]
) -> None:
    engine.got.clear()
    status = ask(
        port,
        **extra,
        x_envoy_retry_on="retriable-status-codes",
        x_envoy_retriable_status_codes="200",
        x_envoy_max_retries="10",
        x_envoy_hedge_on_per_try_timeout="true",
    )
    assert (status, len(engine.got)) == (200, 1)


@pytest.mark.parametrize("header", ["x_envoy_upstream_rq_timeout_ms", "x_envoy_upstream_rq_per_try_timeout_ms"])
def test_a_client_can_not_make_an_engine_look_slow(engine: Engine, port: int, header: str) -> None:
    engine.got.clear()
    assert (ask(port, **{header: "1"}), len(engine.got)) == (200, 1)


@pytest.mark.parametrize("name", ["x-farrier-replay", "X-Farrier-Replay", "X-FARRIER-REPLAY"])
def test_a_client_can_not_keep_its_request_out_of_the_log(engine: Engine, port: int, name: str) -> None:
    engine.got.clear()
    assert ask(port, **{name: "1"}) == 200
    assert "x-farrier-replay" not in engine.got[0]
