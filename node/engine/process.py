"""One engine's life: enter the sandbox, load, warm up, serve, drain.

It starts as a fork of the fork server, with the artifact's open file. Whatever goes wrong while it loads stays readable
on its health socket for a while before it exits, so that the agent can report the reason.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from aifb.errors import AifbError
from node.engine.errors import EngineError
from node.engine.loader import load
from node.engine.model import ServedModel
from node.engine.sandbox import NO_SANDBOX, Sandbox, enter
from node.engine.scheduler import Scheduler
from node.engine.server.app import App
from node.engine.server.inference_log import InferenceLog
from node.engine.spawn import SpawnRequest
from node.engine.timing import StepTimer
from node.wire.health import HealthServer
from node.wire.listener import bind_unix
from node.wire.server import HttpServer, ServerLimits
from protocol.failpoints import pass_by
from protocol.spool import SpoolWriter

log = logging.getLogger(__name__)

# How long a failed engine says why before it exits.
FAILURE_SHOWN_S = 30.0
_TICK_S = 0.1
_BODY_BYTES = 4 << 20


@dataclass
class State:
    """What the health socket tells: written by the engine's threads, read by the health thread, a field at a time."""

    request: SpawnRequest
    sandbox: Sandbox
    timer: StepTimer = field(default_factory=StepTimer)
    phase: str = "loading"  # loading → warming → ready → draining, or failed
    warmup_ms: float = 0.0
    is_sealed: bool = False
    error: dict[str, str] | None = None
    inference_log: InferenceLog | None = None
    scheduler: Scheduler | None = None
    loop_tick_s: float = field(default_factory=time.monotonic)

    def snapshot(self) -> dict[str, Any]:
        """The health answer. `loop_age_s` is the age of the older of two ticks: event loop and compute thread."""
        identity = self.request.identity
        ticks = [self.loop_tick_s]
        if self.scheduler is not None:
            ticks.append(self.scheduler.last_tick_s)
        return {
            "ready": self.phase == "ready",
            "phase": self.phase,
            "error": self.error,
            "digest": identity.digest,
            "version": identity.version,
            "model": identity.model,
            "deployment": identity.deployment,
            "pid": os.getpid(),
            "loop_age_s": round(time.monotonic() - min(ticks), 3),
            "requests": self.inference_log.requests if self.inference_log else 0,
            "errors": self.inference_log.errors if self.inference_log else 0,
            "queue_depth": self.scheduler.queued_rows if self.scheduler else 0,
            "warmup_ms": round(self.warmup_ms, 3),
            "device": "cpu",
            "sandbox": {**asdict(self.sandbox), "sealed": self.is_sealed},
            "steps": list(self.timer.steps),
        }


def run(request: SpawnRequest, artifact_fd: int, started: Callable[[], None]) -> int:
    """Be the engine until SIGTERM; returns the exit status. `started` is called once sandbox and sockets are in place.

    Raises EngineError or OSError only before that call.
    """
    serving, health, sandbox = _enter(request)
    state = State(request, sandbox)
    HealthServer(health, state.snapshot).start()
    started()
    log.info("%s %s: %s", request.identity.model, request.identity.version, sandbox)
    if sandbox.landlock == 0:
        log.warning("Landlock is not in force in this engine: its paths are limited by file permissions alone")
    if not sandbox.seccomp:
        log.warning("no system-call filter is in force in this engine: install libseccomp2, then restart it")
    try:
        model = _load(state, artifact_fd)
    except (EngineError, AifbError) as error:
        return _show_failure(state, error.code, str(error))
    except Exception as error:
        log.exception("the artifact could not be loaded")
        return _show_failure(state, "load_failed", f"The engine failed while it loaded the artifact: {error!r}.")
    asyncio.run(_serve(state, model, serving))
    return 0


def _enter(request: SpawnRequest) -> tuple[socket.socket, socket.socket, Sandbox]:
    """Bind the sockets, then give up the right to make any other. No thread has been started yet."""
    request.spool_dir.mkdir(parents=True, exist_ok=True)
    serving, health = bind_unix(request.socket), bind_unix(request.health_socket)
    if not request.is_sandboxed:
        return serving, health, NO_SANDBOX
    sandbox = enter(write_dirs={request.spool_dir, request.socket.parent, request.health_socket.parent})
    return serving, health, sandbox


def _load(state: State, artifact_fd: int) -> ServedModel:
    torch.set_num_threads(state.request.threads)
    pass_by("engine.before_load")
    identity = state.request.identity
    loaded = load(artifact_fd, digest=identity.digest, threads=state.request.threads, timer=state.timer)
    os.close(artifact_fd)
    state.is_sealed = loaded.is_sealed
    with state.timer.step("entry_point"):
        model = ServedModel(loaded)
    state.phase = "warming"
    with state.timer.step("warm_up"):
        state.warmup_ms = model.warm_up()
    pass_by("engine.after_warm_up")
    return model


def _show_failure(state: State, code: str, sentence: str) -> int:
    log.error("%s: %s", code, sentence)
    state.error = {"code": code, "sentence": sentence}
    state.phase = "failed"
    time.sleep(FAILURE_SHOWN_S)
    _unlink_sockets(state.request)
    return 1


async def _serve(state: State, model: ServedModel, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    told_to_stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, told_to_stop.set)
    spool = SpoolWriter(state.request.spool_dir, "inf")
    state.inference_log = InferenceLog(state.request.identity, spool)
    scheduler = Scheduler(model)
    app = App(state.request.identity, model, scheduler, state.inference_log)
    server = HttpServer(app, ServerLimits(body_bytes=_BODY_BYTES))
    scheduler.start()
    state.scheduler = scheduler
    await server.start(listener)
    ticking = loop.create_task(_tick(state, state.inference_log))
    app.is_ready = True
    state.phase = "ready"
    log.info("ready after %s", state.timer.steps)
    await told_to_stop.wait()
    app.is_ready = False
    state.phase = "draining"
    # no new connection finds the way here; those that wait in the accept queue are still taken
    state.request.socket.unlink(missing_ok=True)
    cut_off = await server.drain()
    log.info("drained, %d requests cut off", cut_off)
    ticking.cancel()
    scheduler.stop()
    state.inference_log.close()
    _unlink_sockets(state.request)


async def _tick(state: State, inference_log: InferenceLog) -> None:
    while True:
        state.loop_tick_s = time.monotonic()
        inference_log.tick()
        await asyncio.sleep(_TICK_S)


def _unlink_sockets(request: SpawnRequest) -> None:
    for path in (request.socket, request.health_socket):
        path.unlink(missing_ok=True)
