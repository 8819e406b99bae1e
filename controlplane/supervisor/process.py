"""One supervised process: fork, exec, watch, end."""

import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable

from controlplane.supervisor import procfs
from controlplane.supervisor.errors import SupervisorError
from controlplane.supervisor.logs import LogFile
from controlplane.supervisor.spec import ProcessSpec, Restart, State

PR_SET_PDEATHSIG = 1
BACKOFF_FIRST_S = 0.5
BACKOFF_MOST_S = 30.0
STABLE_AFTER_S = 30.0  # having run this long, the next failure counts as the first again

# Loaded before any fork: nothing may be imported between fork and exec.
_libc = ctypes.CDLL(None, use_errno=True)


def _child_setup(spec: ProcessSpec, parent_pid: int) -> Callable[[], None]:
    """What the child does between fork and exec."""

    def setup() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        if spec.gid is not None and spec.uid is not None:
            os.setgroups([])
            os.setgid(spec.gid)
            os.setuid(spec.uid)
        # After the change of user, which clears it.
        _libc.prctl(PR_SET_PDEATHSIG, int(spec.death_signal), 0, 0, 0)
        if os.getppid() != parent_pid:
            os._exit(1)  # the supervisor died before the line above could take effect

    return setup


class Process:
    """Runtime state of one spec. Only the supervisor's single thread touches it."""

    def __init__(self, spec: ProcessSpec, log: LogFile) -> None:
        self.spec = spec
        self.log = log
        self.state = State.WAITING
        self.detail = ""
        self.restarts = 0
        self.exit_code: int | None = None
        self.identity: procfs.ProcessId | None = None
        self.retry_at = 0.0
        self._popen: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._checked_at = 0.0
        self._failures = 0
        self._pattern = re.compile(spec.ready.log_pattern) if spec.ready.log_pattern else None
        self._pattern_seen = False
        self._killed = False
        self._stop_helper: subprocess.Popen[bytes] | None = None
        self._stop_deadline = 0.0

    @property
    def pid(self) -> int | None:
        """Pid while it runs."""
        return self._popen.pid if self._popen is not None else None

    def launch(self, now: float) -> None:
        """Fork and exec. Raises SupervisorError when the program can't be executed."""
        spec = self.spec
        with self.log.open_for_child() as output:
            try:
                self._popen = subprocess.Popen(
                    spec.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=spec.cwd,
                    env=dict(spec.env),
                    start_new_session=True,  # Ctrl-C in the terminal is ours alone to hand on
                    preexec_fn=_child_setup(spec, os.getpid()),  # fork-safe: we have one thread
                )
            except OSError as error:
                raise SupervisorError(
                    "not_executable", f"{spec.name} can't be started: {spec.command[0]}: {error.strerror}."
                ) from error
        self.identity = procfs.identify(self._popen.pid)
        self.state, self.detail, self.exit_code = State.STARTING, "", None
        self._started_at, self._checked_at, self._pattern_seen = now, 0.0, False

    def poll_exit(self, now: float) -> bool:
        """Notice an exit; True when it has ended since the last call. Plans the restart."""
        if self._popen is None or (code := self._popen.poll()) is None:
            return False
        self.exit_code = code
        if self.spec.kill_group:
            self._signal_group(signal.SIGKILL)  # what it left behind would hold its sockets and its memory
        lived_s = now - self._started_at
        self._popen = None
        if self.state is State.STOPPING:
            self.state = State.STOPPED
        elif self.spec.restart is Restart.NEVER:
            self.state = State.DONE if code == 0 else State.FAILED
            self.detail = describe_exit(code)
        else:
            self._failures = 1 if lived_s > STABLE_AFTER_S else self._failures + 1
            delay_s = min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2 ** (self._failures - 1))
            self.retry_at = now + delay_s
            self.state = State.BACKOFF
            self.detail = f"{describe_exit(code)}; again in {delay_s:g} s"
        return True

    def see_output(self, line: str) -> None:
        """Look at one of its log lines for the readiness pattern."""
        if self._pattern is not None and self._pattern.search(line):
            self._pattern_seen = True

    def check_ready(self, now: float) -> None:
        """Move between STARTING and READY by the probe; `detail` says why not."""
        probe = self.spec.ready
        if self.state is State.READY:
            if probe.recheck_s is None or probe.check is None or now - self._checked_at < probe.recheck_s:
                return
            self._checked_at = now
            self.detail = probe.check() or ""
            return
        if self.state is not State.STARTING:
            return
        reason = self._why_not_ready(now)
        self.detail = reason or ""
        if reason is None:
            self.state, self._checked_at = State.READY, now

    def _why_not_ready(self, now: float) -> str | None:
        probe = self.spec.ready
        if now - self._started_at < probe.settle_s:
            return "settling"
        if self._pattern is not None and not self._pattern_seen:
            return "not said to be ready yet"
        return probe.check() if probe.check is not None else None

    def waited_too_long(self, now: float) -> bool:
        """True when it has been starting for longer than it may."""
        return self.state is State.STARTING and now - self._started_at > self.spec.ready_timeout_s

    def needs_stop(self) -> bool:
        """False when nothing of it can be running."""
        return self._popen is not None or self.spec.stop_command is not None

    def begin_stop(self, now: float) -> None:
        """Ask it to end; `continue_stop` follows up."""
        self._stop_deadline, self.detail = now + self.spec.stop_grace_s, ""
        if self.spec.stop_command is not None:
            self._run_stop_command()
        if self._popen is None:
            self.state = State.STOPPED if self.state is not State.DONE else self.state
            return
        self.state = State.STOPPING
        if self.spec.stop_command is None:
            self._signal(self.spec.stop_signal)

    def _run_stop_command(self) -> None:
        spec = self.spec
        if spec.stop_command is None:
            return
        with self.log.open_for_child() as output:
            self._stop_helper = subprocess.Popen(
                spec.stop_command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=spec.cwd,
                env=dict(spec.env),
                start_new_session=True,
            )

    def continue_stop(self, now: float, hurry: bool) -> bool:
        """True when it is gone. Past its grace, or in a hurry, it is killed.

        A stop command has its grace even in a hurry: what it would end, nobody else can find.
        """
        late = now > self._stop_deadline or (hurry and self._stop_helper is None)
        if self._stop_helper is not None:
            if self._stop_helper.poll() is None:
                if not late:
                    return False
                self._stop_helper.kill()
            self._stop_helper = None
            if self._popen is not None:
                self._signal(self.spec.stop_signal)
        if self._popen is None:
            return True
        if late and not self._killed:
            self._killed = True
            self.detail = "killed: it did not end in time"
            self._signal_group(signal.SIGKILL) if self.spec.kill_group else self._signal(signal.SIGKILL)
        self.poll_exit(now)
        return self._popen is None

    def _signal(self, number: signal.Signals) -> None:
        if self._popen is not None:
            self._popen.send_signal(number)

    def _signal_group(self, number: signal.Signals) -> None:
        if self.identity is None:
            return
        try:
            os.killpg(self.identity.pid, number)
        except ProcessLookupError:
            return  # nobody is left of it

    def uptime_s(self) -> float:
        """Seconds since this incarnation started."""
        return time.monotonic() - self._started_at


def describe_exit(code: int) -> str:
    """A wait status in words."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"exited with {code}"
