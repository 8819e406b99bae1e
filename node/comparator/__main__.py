"""The comparator: the target of the gateway's mirror.

    python -m node.comparator --config <path.json> --socket <path> --health-socket <path>

Every request is answered with 200 at once, whatever becomes of it: the mirror must not hold anybody up. It runs at low
priority, and its replays at the engines wait for clients.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import signal
import socket
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from node.comparator.config import ConfigFile
from node.comparator.errors import ConfigError
from node.comparator.replay import Mirrored
from node.comparator.worker import Worker
from node.wire.health import HealthServer
from node.wire.http import HttpRequest, HttpResponse
from node.wire.listener import bind_unix
from node.wire.server import HttpServer, ServerLimits

log = logging.getLogger("comparator")

_NICENESS = 10
_BODY_BYTES = 4 << 20
_INFER_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/[^/]+)?/infer")


def main() -> int:
    """Compare until SIGTERM."""
    parser = argparse.ArgumentParser(description="Farrier's comparator of shadow traffic")
    parser.add_argument("--config", type=Path, required=True, help="JSON file that the node agent writes")
    parser.add_argument("--socket", type=Path, required=True, help="unix socket that the gateway mirrors to")
    parser.add_argument("--health-socket", type=Path, required=True, help="unix socket for the agent's questions")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    os.nice(_NICENESS)
    try:
        config = ConfigFile(arguments.config)
        config.current.spool_dir.mkdir(parents=True, exist_ok=True)
        listener, health = bind_unix(arguments.socket), bind_unix(arguments.health_socket)
    except (ConfigError, OSError) as error:
        log.error("%s", error)
        return 1
    worker = Worker(config)
    HealthServer(health, lambda: _snapshot(worker, config)).start()
    worker.start()
    asyncio.run(_serve(worker, listener, arguments.socket))
    worker.stop()
    arguments.health_socket.unlink(missing_ok=True)
    return 0


def _snapshot(worker: Worker, config: ConfigFile) -> dict[str, Any]:
    names = ("received", "compared", "dropped", "refused", "unmatched")
    return {
        "ready": True,
        "pid": os.getpid(),
        "loop_age_s": round(time.monotonic() - worker.last_tick_s, 3),
        "queued": worker.queued,
        **{name: worker.counts[name] for name in names},
        "lost_rows": worker.lost_rows,
        "models": sorted(config.current.models),
        "config_error": config.error,
    }


async def _serve(worker: Worker, listener: socket.socket, path: Path) -> None:
    told_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_stop.set)

    async def take(request: HttpRequest) -> HttpResponse:
        match = _INFER_PATH.fullmatch(request.path)
        if request.method == "POST" and match is not None:
            identity = request.headers.get("x-request-id") or uuid.uuid4().hex
            worker.offer(Mirrored(match[1], identity, request.body, time.time_ns() // 1000))
        return HttpResponse(200, b"")

    server = HttpServer(take, ServerLimits(body_bytes=_BODY_BYTES))
    await server.start(listener)
    log.info("ready on %s", path)
    await told_to_stop.wait()
    path.unlink(missing_ok=True)
    await server.drain(linger_s=0.05)


if __name__ == "__main__":
    sys.exit(main())
