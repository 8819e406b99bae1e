"""Processes that outlive the agent: started detached, known by pid and start time, signalled without a race."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_DEAD = frozenset("ZX")


@dataclass(frozen=True)
class Process:
    """A process that can't be mistaken for a later one with the same pid. `start_time` is in clock ticks from boot."""

    pid: int
    start_time: int

    def is_alive(self) -> bool:
        """Whether this very process still runs (a zombie doesn't)."""
        return _start_time(self.pid) == self.start_time

    def send(self, number: signal.Signals) -> bool:
        """Signal this very process; False when it has ended."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # the descriptor holds on to one process; only now compare whose it is
            if not self.is_alive():
                return False
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True

    def end(self, *, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after `grace_s`; returns once the process is gone."""
        if self.send(signal.SIGTERM) and not self.wait(grace_s):
            self.send(signal.SIGKILL)
            self.wait(grace_s)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the process to end; False when it still runs after `timeout_s`."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if not self.is_alive():
                return True
            return bool(select.select([fd], [], [], timeout_s)[0])
        finally:
            os.close(fd)


def find(pid: int) -> Process | None:
    """The process that has this pid now."""
    started = _start_time(pid)
    return None if started is None else Process(pid, started)


def _start_time(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat; None when there is no such process, or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the command's name may hold spaces and brackets; the state follows its last one
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in _DEAD else int(fields[19])


def start_detached(
    command: Sequence[str], *, log: Path, nice: int = 0, environment: Mapping[str, str] | None = None
) -> Process:
    """Start a program in a session of its own, its output appended to `log`; it goes on when we end.

    Raises OSError when it can't be started. As long as we live it is reaped by a thread.
    """
    with open(log, "ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            close_fds=True,
            env={**os.environ, **(environment or {})},
        )
    if nice:
        os.setpriority(os.PRIO_PROCESS, child.pid, nice)
    started = find(child.pid)
    threading.Thread(target=child.wait, name=f"reap-{child.pid}", daemon=True).start()
    # a child that ended before we looked is a zombie until it is reaped: nobody else can have its pid
    return started or Process(child.pid, -1)


def python_command(module: str, *arguments: str) -> list[str]:
    """The command line of one of our own programs, run by this very interpreter."""
    return [sys.executable, "-m", module, *arguments]


class Watch:
    """Waits for the end of any of some processes, or for `wake`, whichever comes first."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """End the wait that is going on, or else the next one. May be called from any thread."""
        try:
            os.write(self._write, b"\x00")
        except BlockingIOError:
            return  # the pipe is full of wake-ups already

    def wait(self, processes: Iterable[Process], timeout_s: float) -> None:
        """Return when a process ends, somebody wakes us, or time is up."""
        fds: list[int] = []
        try:
            for process in processes:
                try:
                    fds.append(os.pidfd_open(process.pid))
                except ProcessLookupError:
                    return
                if not process.is_alive():
                    return
            readable, _, _ = select.select([self._read, *fds], [], [], timeout_s)
            if self._read in readable:
                os.read(self._read, 4096)
        finally:
            for fd in fds:
                os.close(fd)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._read)
        os.close(self._write)


def wait_until(is_true: Callable[[], bool], timeout_s: float, *, every_s: float = 0.05) -> bool:
    """Ask until the answer is yes; False when it wasn't in time."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
    return True
