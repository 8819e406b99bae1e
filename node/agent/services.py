"""Detached helpers of the agent (fork server, gateway, comparator): started, adopted after a restart, kept running."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.agent.backoff import Backoff
from node.agent.files import read_json, write_json
from node.agent.home import Home
from node.agent.processes import Process, start_detached
from node.wire.client import UnixClient

log = logging.getLogger(__name__)

STEADY_S = 30.0  # a service that ran this long starts from the shortest delay again
MAX_LOG_BYTES = 32 << 20


class Records:
    """Which detached processes belong to a home: pid, start time, and what they were started with."""

    def __init__(self, home: Home) -> None:
        self._path = home.path / "processes.json"
        self._lock = threading.Lock()

    def all(self) -> dict[str, Process]:
        """Every recorded process by name; some may have ended."""
        return {name: _process(entry) for name, entry in self._read().items()}

    def get(self, name: str, fingerprint: str | None = None) -> Process | None:
        """The recorded process if it still runs, and was started with `fingerprint` (None: with whatever)."""
        entry = self._read().get(name)
        if entry is None or (fingerprint is not None and entry["fingerprint"] != fingerprint):
            return None
        process = _process(entry)
        return process if process.is_alive() else None

    def put(self, name: str, process: Process, fingerprint: str = "") -> None:
        """Record durably, at once: what isn't recorded isn't found again."""
        with self._lock:
            entry = {"pid": process.pid, "start_time": process.start_time, "fingerprint": fingerprint}
            write_json(self._path, {**self._read(), name: entry})

    def forget(self, name: str) -> None:
        """Remove a record."""
        with self._lock:
            write_json(self._path, {key: entry for key, entry in self._read().items() if key != name})

    def _read(self) -> dict[str, Any]:
        return read_json(self._path) or {}


def _process(entry: Mapping[str, Any]) -> Process:
    return Process(int(entry["pid"]), int(entry["start_time"]))


@dataclass(frozen=True)
class Status:
    """How a service does: ready, or a code and a sentence that say why not."""

    is_ready: bool
    code: str = ""
    sentence: str = ""
    is_starting: bool = False  # worth looking again soon


class Service:
    """One detached process that must run. `ensure` is called every tick and never blocks for long.

    `fingerprint` stands for the command and whatever it reads at its start only: another one means another process.
    """

    def __init__(
        self,
        home: Home,
        records: Records,
        name: str,
        command: Sequence[str],
        *,
        is_ready: Callable[[], bool],
        reads: bytes = b"",
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = 60.0,
    ) -> None:
        self.name = name
        self._home = home
        self._records = records
        self._command = list(command)
        self._is_ready = is_ready
        self._environment = environment
        self._start_timeout_s = start_timeout_s
        self.fingerprint = hashlib.sha256("\x00".join(self._command).encode() + b"\x00" + reads).hexdigest()[:16]
        self._backoff = Backoff(0.5, 30.0)
        self._started_s = time.monotonic()
        self._not_before_s = 0.0
        self._was_ready = False

    @property
    def log_file(self) -> Path:
        """Where the process prints."""
        return self._home.logs / f"{self.name}.log"

    def process(self) -> Process | None:
        """The running process."""
        return self._records.get(self.name, self.fingerprint)

    def ensure(self, now_s: float) -> Status:
        """Adopt, start or restart the process as needed, and say how it does."""
        process = self.process()
        if process is None:
            return self._start(now_s)
        if self._is_ready():
            self._was_ready = True
            if now_s - self._started_s > STEADY_S:
                self._backoff.reset()
            return Status(is_ready=True)
        if now_s - self._started_s > self._start_timeout_s:
            log.error("%s doesn't answer for %.0f s: it is started anew", self.name, self._start_timeout_s)
            process.end(grace_s=2.0)
        return self._starting()

    def _start(self, now_s: float) -> Status:
        if now_s < self._not_before_s:
            return Status(False, f"{self.name}_ended", self._last_words())
        other = self._records.get(self.name)
        if other is not None:  # an earlier one, started with something else
            other.end(grace_s=5.0)
        self._limit_log()
        try:
            process = start_detached(self._command, log=self.log_file, environment=self._environment)
        except OSError as failed:
            self._not_before_s = now_s + self._backoff.next_s()
            return Status(False, f"{self.name}_not_started", f"The {self.name} can't be started: {failed}.")
        self._records.put(self.name, process, self.fingerprint)
        log.info("%s started as process %d", self.name, process.pid)
        # the first restart of one that was well is immediate
        delay = self._backoff.next_s()
        self._not_before_s = now_s + (0.0 if self._was_ready else delay)
        self._started_s, self._was_ready = now_s, False
        return self._starting()

    def _starting(self) -> Status:
        return Status(False, f"{self.name}_starting", f"The {self.name} is starting.", is_starting=True)

    def _last_words(self) -> str:
        with open(self.log_file, "rb") as printed:
            printed.seek(max(0, os.fstat(printed.fileno()).st_size - 2_000))
            lines = [line.strip() for line in printed.read().decode(errors="replace").splitlines() if line.strip()]
        said = f": {lines[-1][:300]}" if lines else ""
        return f"The {self.name} ended and is started again soon; see {self.log_file}{said}"

    def _limit_log(self) -> None:
        if self.log_file.exists() and self.log_file.stat().st_size > MAX_LOG_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))


def health_says_ready(path: Path) -> bool:
    """Ask a health socket; False when nobody answers there."""
    try:
        with UnixClient(path, timeout_s=1.0) as client:
            return bool(client.request("GET", "/").json().get("ready"))
    except (OSError, ValueError, http.client.HTTPException):
        return False
