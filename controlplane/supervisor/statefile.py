"""What `make status` and `make down` know of a running supervisor: a lock and a small JSON file."""

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from controlplane.supervisor.errors import SupervisorError
from controlplane.supervisor.procfs import ProcessId, identify

if TYPE_CHECKING:
    from controlplane.supervisor.process import Process


@dataclass(frozen=True)
class ProcessRow:
    """One process as last written by the supervisor."""

    name: str
    pid: int | None
    start_time: int | None
    state: str
    detail: str
    restarts: int
    owns_session: bool = True  # what it started goes when it goes

    @property
    def identity(self) -> ProcessId | None:
        """Pid and start time, if it ran when this was written."""
        return ProcessId(self.pid, self.start_time) if self.pid and self.start_time else None


class StateFile:
    """`run/processes.json`; written only when something in it changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = ""

    def write(self, processes: "Iterable[Process]") -> None:
        """Store the state of these processes, atomically."""
        rows = [
            {
                "name": process.spec.name,
                "pid": process.pid,
                "start_time": process.identity.start_time if process.identity and process.pid else None,
                "state": str(process.state),
                "detail": process.detail,
                "restarts": process.restarts,
                "owns_session": process.spec.kill_group,
            }
            for process in processes
        ]
        text = json.dumps(rows, indent=1)
        if text == self._last:
            return
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(text)
        temporary.replace(self._path)
        self._last = text

    def read(self) -> list[ProcessRow]:
        """Rows as last written; empty when there is no such file."""
        try:
            return [ProcessRow(**row) for row in json.loads(self._path.read_text())]
        except FileNotFoundError:
            return []

    def remove(self) -> None:
        """Nothing runs any more."""
        self._path.unlink(missing_ok=True)
        self._last = ""


class Lock:
    """`run/supervisor.lock`, held for the supervisor's lifetime; the kernel drops it however the holder dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode().strip()
            os.close(descriptor)
            raise SupervisorError(
                "already_running",
                f"Farrier is already running here (process {holder or 'unknown'}): use it, see `make status`, "
                "or stop it with `make down`.",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> ProcessId | None:
        """The running supervisor; None when nobody holds the lock."""
        try:
            descriptor = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, 32, 0).decode().strip()
            return identify(int(text)) if text else None
        finally:
            os.close(descriptor)
        return None
