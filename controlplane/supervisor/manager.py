"""The supervisor: one thread, one loop, ten looks a second at every child."""

import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import FrameType

from controlplane.supervisor.errors import StopRequested, SupervisorError
from controlplane.supervisor.logs import LogFile, Terminal
from controlplane.supervisor.process import Process, describe_exit
from controlplane.supervisor.spec import ProcessSpec, Restart, State
from controlplane.supervisor.statefile import StateFile

TICK_S = 0.1
PROGRESS_EVERY_S = 5.0
SECOND_THOUGHT_S = 1.0


class Supervisor:
    """Starts waves of processes, keeps them alive, stops them in reverse order."""

    def __init__(self, log_dir: Path, state_file: StateFile, terminal: Terminal) -> None:
        self._log_dir = log_dir
        self._state_file = state_file
        self._terminal = terminal
        self._processes: list[Process] = []
        self._stop_asked = False
        self._stopping_since: float | None = None
        self._hurry = False
        # A signal handler may run at any byte code; the wake-up socket makes select() return at once.
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)

    # -- signals -------------------------------------------------------------------------------------------------

    def install_signal_handlers(self) -> None:
        """Ctrl-C, `make down` (SIGTERM) and a closed terminal (SIGHUP) all mean: stop everything in order."""
        signal.set_wakeup_fd(self._wake_writer.fileno())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._stop_asked = True
        # Only a person's later Ctrl-C means «don't wait»: make and process managers send one stop signal several times.
        if number == signal.SIGINT and self._stopping_since is not None:
            self._hurry = time.monotonic() - self._stopping_since > SECOND_THOUGHT_S

    def _sleep(self, seconds: float) -> None:
        readable, _, _ = select.select([self._wake_reader], [], [], seconds)
        if readable:
            self._wake_reader.recv(64)

    # -- starting ------------------------------------------------------------------------------------------------

    def start(self, specs: Iterable[ProcessSpec]) -> None:
        """Start these, wave by wave, and wait until each is ready.

        Raises SupervisorError naming the process that did not come up, StopRequested on Ctrl-C.
        """
        waves: dict[int, list[ProcessSpec]] = {}
        for spec in specs:
            waves.setdefault(spec.wave, []).append(spec)
        for wave in sorted(waves):
            self._start_wave(waves[wave])

    def _start_wave(self, specs: list[ProcessSpec]) -> None:
        begun = time.monotonic()
        started = []
        for spec in specs:
            process = Process(spec, LogFile(self._log_dir / f"{spec.name}.log"))
            self._processes.append(process)
            process.launch(time.monotonic())
            started.append(process)
        reported: set[str] = set()
        last_progress = begun
        while True:
            self._tick()
            now = time.monotonic()
            for process in started:
                self._check_start(process, now)
                if process.state in (State.READY, State.DONE) and process.spec.name not in reported:
                    reported.add(process.spec.name)
                    self._terminal.say(f"  ✔ {process.spec.name} ready after {now - begun:.1f} s")
            if len(reported) == len(started):
                return
            if now - last_progress > PROGRESS_EVERY_S:
                last_progress = now
                self._report_waiting(started, now - begun)
            self._sleep(TICK_S / 2)

    def _check_start(self, process: Process, now: float) -> None:
        if process.waited_too_long(now):
            raise SupervisorError(
                "not_ready",
                f"{process.spec.name} was not ready after {process.spec.ready_timeout_s:g} s "
                f"({process.detail or 'no answer'}).{self._last_words(process)}",
            )
        # A program that can't even start says so in its log: better seen now than after a minute of retries.
        if process.state is State.FAILED or (process.state is State.BACKOFF and process.restarts >= 2):
            raise SupervisorError("start_failed", f"{process.spec.name} {process.detail}.{self._last_words(process)}")

    def _report_waiting(self, started: list[Process], waited_s: float) -> None:
        waiting = [f"{p.spec.name} ({p.detail or p.state})" for p in started if p.state is not State.READY]
        self._terminal.say(f"  … waiting for {', '.join(waiting)}, {waited_s:.0f} s so far")

    def _last_words(self, process: Process) -> str:
        lines = process.log.tail(12)
        where = f" Its log: {process.log.path}"
        return where + "".join(f"\n    {line}" for line in lines)

    def run_step(self, spec: ProcessSpec) -> None:
        """Run a command to its end while everything else is watched. Raises SupervisorError when it fails."""
        begun = time.monotonic()
        process = Process(replace(spec, restart=Restart.NEVER), LogFile(self._log_dir / f"{spec.name}.log"))
        self._processes.append(process)
        process.launch(begun)
        try:
            while process.state not in (State.DONE, State.FAILED):
                self._tick()
                if time.monotonic() - begun > spec.ready_timeout_s:
                    raise SupervisorError("step_timeout", f"{spec.name} took longer than {spec.ready_timeout_s:g} s.")
                self._sleep(TICK_S / 2)
        finally:
            if process.state in (State.DONE, State.FAILED):
                self._processes.remove(process)
        if process.state is State.FAILED:
            raise SupervisorError(
                "step_failed", f"{spec.name} {describe_exit(process.exit_code or 0)}.{self._last_words(process)}"
            )
        self._terminal.say(f"  ✔ {spec.name} done in {time.monotonic() - begun:.1f} s")

    # -- running -------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Watch until asked to stop (or `until` says so)."""
        while until is None or not until():
            try:
                self._tick()
            except StopRequested:
                return
            self._sleep(TICK_S)

    def _tick(self) -> None:
        if self._stop_asked:
            raise StopRequested
        now = time.monotonic()
        for process in self._processes:
            self._follow_log(process)
            if process.poll_exit(now):
                self._follow_log(process)
                self._announce_exit(process)
            if process.state is State.BACKOFF and now >= process.retry_at:
                process.restarts += 1
                process.launch(now)
            before = process.state
            process.check_ready(now)
            if before is State.STARTING and process.state is State.READY and process.restarts:
                self._terminal.say(f"  ✔ {process.spec.name} is back (restart {process.restarts})")
        self._state_file.write(self._processes)

    def _follow_log(self, process: Process) -> None:
        for line in process.log.new_lines():
            process.see_output(line)
            if process.spec.echo:
                self._terminal.line(process.spec.name, line)
        process.log.rotate_if_large()

    def _announce_exit(self, process: Process) -> None:
        if process.state is State.BACKOFF:
            self._terminal.say(f"  ✘ {process.spec.name} {process.detail}")
        elif process.state is State.FAILED:
            self._terminal.say(f"  ✘ {process.spec.name} {process.detail}. Its log: {process.log.path}")

    # -- stopping ------------------------------------------------------------------------------------------------

    def stop_all(self) -> None:
        """End every process, the last wave first. One more Ctrl-C kills instead of waiting."""
        self._stopping_since = time.monotonic()
        for wave in sorted({process.spec.wave for process in self._processes}, reverse=True):
            leaving = [p for p in reversed(self._processes) if p.spec.wave == wave and p.needs_stop()]
            self._stop_wave(leaving)
        self._processes.clear()
        self._state_file.remove()

    def _stop_wave(self, leaving: list[Process]) -> None:
        begun = time.monotonic()
        for process in leaving:
            process.begin_stop(begun)
        while leaving:
            for process in list(leaving):
                gone = process.continue_stop(time.monotonic(), hurry=self._hurry)
                self._follow_log(process)
                if gone:
                    leaving.remove(process)
                    note = f" ({process.detail})" if process.detail else ""
                    self._terminal.say(f"  ■ {process.spec.name} stopped in {time.monotonic() - begun:.1f} s{note}")
            self._state_file.write(self._processes)
            if leaving:
                self._sleep(TICK_S / 2)

    # -- looking -------------------------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        """The process of this name. Raises KeyError."""
        for process in self._processes:
            if process.spec.name == name:
                return process
        raise KeyError(name)

    def close(self) -> None:
        """Give back signals and descriptors."""
        signal.set_wakeup_fd(-1)
        self._wake_reader.close()
        self._wake_writer.close()
