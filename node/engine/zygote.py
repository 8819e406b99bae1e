"""The fork server: torch is imported once, engines are forks of it.

    python -m node.engine.zygote --socket <path>

It has one thread and touches no artifact. Messages are JSON, one a packet on a SOCK_SEQPACKET unix socket:
`{"cmd":"ping"}` → `{"ok":true,…}`; `{"cmd":"spawn",…}` with the artifact's open file as SCM_RIGHTS →
`{"pid","start_time","error"}`. An engine belongs to no session of ours, so it outlives this process; while this process
lives it reaps its dead engines and logs how they ended.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

# Before numpy and torch are imported: their thread pools must not exist when we fork, and one engine is one pool.
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_MAX_PACKET_BYTES = 64 * 1024
# An engine binds its sockets and enters the sandbox in milliseconds; a disk that hangs must not hang the fork server.
_START_TIMEOUT_S = 10.0

log = logging.getLogger("zygote")


def main() -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="Farrier's engine fork server")
    parser.add_argument("--socket", type=Path, required=True, help="unix socket that the node agent connects to")
    path: Path = parser.parse_args().socket
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"), TOKENIZERS_PARALLELISM="false")
    # imported here, not above: the environment has to be set first
    from node.engine.errors import SandboxError
    from node.engine.sandbox import refuse_preloads

    try:
        refuse_preloads()
    except SandboxError as error:
        log.error("%s", error)
        return 1
    _preload()
    from node.wire.listener import bind_unix

    with bind_unix(path, kind=socket.SOCK_SEQPACKET) as listener:
        log.info("ready on %s, %d thread", path, _thread_count())
        _Zygote(listener).serve()
    path.unlink(missing_ok=True)
    return 0


def _preload() -> None:
    """Import all that an engine runs, and share its pages: what is in memory now is never copied or collected."""
    import torch

    from node.engine import ops, process  # noqa: F401 - for the forks

    torch.set_num_threads(1)
    log.info("torch %s, %d operations", torch.__version__, ops.resolve_all())
    gc.collect()
    gc.freeze()


def _thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


class _Zygote:
    """One loop over the listener, its clients, and a pipe that signals write to."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._clients: list[socket.socket] = []
        self._engines: dict[int, str] = {}
        self._must_stop = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)

    def serve(self) -> None:
        """Answer clients until told to stop."""
        signal.set_wakeup_fd(self._wake_write)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        # a handler must be installed for SIGCHLD to reach the wake-up pipe
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        while not self._must_stop:
            watched: list[int | socket.socket] = [self._listener, self._wake_read, *self._clients]
            readable, _, _ = select.select(watched, [], [])
            if self._wake_read in readable:
                os.read(self._wake_read, 4096)
                self._reap()
            if self._listener in readable:
                self._clients.append(self._listener.accept()[0])
            for client in [client for client in self._clients if client in readable]:
                self._serve_client(client)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._must_stop = True

    def _reap(self) -> None:
        for pid, slot in list(self._engines.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._engines[pid]
                code = os.waitstatus_to_exitcode(status)
                how = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
                log.info("engine %d of slot %s ended: %s", pid, slot, how)

    def _serve_client(self, client: socket.socket) -> None:
        """One packet in, one packet out; a client that closed is forgotten."""
        try:
            raw, fds, _, _ = socket.recv_fds(client, _MAX_PACKET_BYTES, 4)
            if not raw:
                self._forget(client)
                return
            try:
                answer = self._answer(raw, fds)
            finally:
                for fd in fds:
                    os.close(fd)
            client.sendall(json.dumps(answer).encode())
        except OSError as error:
            log.warning("a client of the fork server was dropped: %s", error)
            self._forget(client)

    def _forget(self, client: socket.socket) -> None:
        self._clients.remove(client)
        client.close()

    def _answer(self, raw: bytes, fds: list[int]) -> dict[str, Any]:
        from node.engine.errors import SpawnError
        from node.engine.spawn import parse_message, parse_spawn

        try:
            message = parse_message(raw)
            if message["cmd"] == "ping":
                return {"ok": True, "pid": os.getpid(), "engines": sorted(self._engines)}
            if message["cmd"] != "spawn":
                raise SpawnError("bad_message", "The fork server knows the commands ping and spawn.")
            if len(fds) != 1:
                raise SpawnError("bad_message", f"A spawn message carries one open file, this one has {len(fds)}.")
            return self._spawn(parse_spawn(message), fds[0])
        except SpawnError as error:
            log.error("%s: %s", error.code, error)
            return {"pid": None, "start_time": None, "error": error.sentence, "code": error.code}

    def _spawn(self, request: Any, artifact_fd: int) -> dict[str, Any]:
        from node.engine.errors import SpawnError

        if (count := _thread_count()) != 1:
            # a fork would copy locks that no thread ever releases
            raise SpawnError("threads_before_fork", f"The fork server has {count} threads; restart it.")
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become_engine(request, artifact_fd, write_end)
        os.close(write_end)
        self._engines[pid] = request.slot
        started = _start_time(pid)
        failure = _read_failure(read_end)
        if failure is not None:
            os.kill(pid, signal.SIGKILL)
            raise SpawnError("engine_start_failed", failure)
        log.info("engine %d of slot %s: %s %d", pid, request.slot, request.identity.model, request.identity.version)
        return {"pid": pid, "start_time": started, "error": None}


def _start_time(pid: int) -> int:
    """Field 22 of /proc/<pid>/stat: clock ticks from boot to the process's start. With the pid it names a process."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])


def _read_failure(read_end: int) -> str | None:
    """What the new engine says of its start: None if it stands."""
    with open(read_end, "rb") as pipe:
        ready, _, _ = select.select([pipe], [], [], _START_TIMEOUT_S)
        said = pipe.read().decode(errors="replace") if ready else ""
    if said == "ok":
        return None
    return said or "The engine ended, or hung, before its sockets and its sandbox were in place; see its log."


def _become_engine(request: Any, artifact_fd: int, write_end: int) -> None:
    """In the fork: cut all ties with the fork server, run, exit. Never returns."""
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        _redirect(request.log)
        _close_all_but({0, 1, 2, artifact_fd, write_end})
        status = _run(request, artifact_fd, write_end)
    except BaseException:
        log.exception("the engine failed")
    finally:
        # not sys.exit: the fork server's own clean-up must not run twice
        logging.shutdown()
        os._exit(status)


def _run(request: Any, artifact_fd: int, write_end: int) -> int:
    from node.engine import process
    from node.engine.errors import EngineError

    has_spoken = False

    def say(text: str) -> None:
        nonlocal has_spoken
        # once: later the number of the closed descriptor may be another file's
        if not has_spoken:
            has_spoken = True
            os.write(write_end, text.encode())
            os.close(write_end)

    try:
        return process.run(request, artifact_fd, lambda: say("ok"))
    except (EngineError, OSError) as error:
        log.exception("the engine could not start")
        say(str(error))
        return 1


def _redirect(path: Path) -> None:
    """Standard input from nowhere, output to the engine's log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    nothing = os.open(os.devnull, os.O_RDONLY)
    sys.stdout.flush()
    sys.stderr.flush()
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def _close_all_but(kept: Iterable[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                continue  # the listing's own descriptor is gone by now


if __name__ == "__main__":
    sys.exit(main())
