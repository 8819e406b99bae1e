"""What a supervised process is: plain data, no behaviour."""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Restart(StrEnum):
    """What follows when a process ends by itself."""

    ALWAYS = "always"
    NEVER = "never"  # it has a beginning and an end, like the story


class State(StrEnum):
    """Where a process stands, as `make status` prints it."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    BACKOFF = "backoff"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Probe:
    """How to see that a process can be used.

    `check` returns None when it is ready, else why not (a few words). It may block for a second at most. `log_pattern`
    (a regular expression over the process's own output) is for programs that answer on no socket.
    """

    check: Callable[[], str | None] | None = None
    log_pattern: str | None = None
    settle_s: float = 0.0  # it must have been alive for this long
    recheck_s: float | None = None  # look again while it runs, so that `make status` tells the truth


@dataclass(frozen=True)
class ProcessSpec:
    """One process of `make up`.

    `wave` groups processes that start together; a wave begins when all of the wave before are ready. Waves stop in
    reverse order.
    """

    name: str
    command: tuple[str, ...]
    wave: int
    env: Mapping[str, str]
    cwd: Path
    ready: Probe = field(default_factory=Probe)
    ready_timeout_s: float = 60.0
    restart: Restart = Restart.ALWAYS
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_s: float = 10.0
    # Run instead of a signal where a process must take more down than itself (a node agent and its engines).
    stop_command: tuple[str, ...] | None = None
    # Sent by the kernel when the supervisor dies, however it dies.
    death_signal: signal.Signals = signal.SIGTERM
    # False for node agents: what they start has to survive them.
    kill_group: bool = True
    echo: bool = True  # show its log lines on the terminal, not only in its file
    uid: int | None = None
    gid: int | None = None
