"""A supervisor of its own process, as `make up` is one: `python -m tests.supervisor.harness HOME SCENARIO`."""

import sys
from collections.abc import Callable
from pathlib import Path

from controlplane.supervisor.credentials import load_or_create
from controlplane.supervisor.errors import StopRequested, SupervisorError
from controlplane.supervisor.launch import Options, assemble, end_leftovers
from controlplane.supervisor.layout import Layout, layout_for
from controlplane.supervisor.logs import Terminal
from controlplane.supervisor.manager import Supervisor
from controlplane.supervisor.spec import Probe, ProcessSpec, Restart
from controlplane.supervisor.statefile import Lock, StateFile

ROOT = Path(__file__).resolve().parents[2]
SLEEP = "import time; print('up', flush=True); time.sleep(3600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(3600)"
)
SLOW = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep({seconds}), sys.exit(0)))
print("up", flush=True)
time.sleep(3600)
"""
# Starts a process of its own that is to outlive it, as a node agent starts engines.
PARENT = """
import pathlib, subprocess, sys, time
home = pathlib.Path(sys.argv[1])
if not (home / "engine.pid").exists():
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    (home / "engine.pid").write_text(str(engine.pid))
print("up", flush=True)
time.sleep(3600)
"""
FAMILY = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
(pathlib.Path(sys.argv[1]) / "child.pid").write_text(str(child.pid))
print("up", flush=True)
time.sleep(3600)
"""
SHUTDOWN = """
import os, pathlib, signal, sys
os.kill(int((pathlib.Path(sys.argv[1]) / "engine.pid").read_text()), signal.SIGTERM)
"""


def program(layout: Layout, name: str, code: str, wave: int = 0, **more: object) -> ProcessSpec:
    """A Python one-liner as a process; it is ready once it prints «up»."""
    command = (sys.executable, "-u", "-c", code, str(layout.home))
    return ProcessSpec(
        name, command, wave, {}, layout.home, Probe(log_pattern="^up$"), **{"ready_timeout_s": 60, **more}
    )


def services(layout: Layout) -> list[ProcessSpec]:
    """PostgreSQL and Redis, as `make up` embeds them."""
    secrets = load_or_create(layout.secrets)
    return assemble(Options(ROOT, layout.home, None, None, None), layout, secrets)[0].specs


def sleepers(layout: Layout) -> list[ProcessSpec]:
    """Three processes in two waves."""
    return [
        program(layout, "first", SLEEP),
        program(layout, "second", STUBBORN, 1, stop_grace_s=0.5),
        program(layout, "third", SLEEP, 1),
    ]


def agent(layout: Layout) -> list[ProcessSpec]:
    """A process whose child must survive it, and a command that ends both."""
    stop = (sys.executable, "-c", SHUTDOWN, str(layout.home))
    return [program(layout, "agent", PARENT, stop_command=stop, kill_group=False)]


def family(layout: Layout) -> list[ProcessSpec]:
    """A process with a child in its own session, as a story with its traffic."""
    return [program(layout, "parent", FAMILY)]


def slow(layout: Layout) -> list[ProcessSpec]:
    """A process that takes long to end."""
    return [program(layout, "slow", SLOW.format(seconds=25), stop_grace_s=60)]


def brief(layout: Layout) -> list[ProcessSpec]:
    """A process that takes a moment to end."""
    return [program(layout, "brief", SLOW.format(seconds=1.5), stop_grace_s=60)]


def broken(layout: Layout) -> list[ProcessSpec]:
    """A program that says why it can't start."""
    return [program(layout, "broken", "raise SystemExit('the configuration has no colour')")]


def finite(layout: Layout) -> list[ProcessSpec]:
    """A process with an end, beside one without."""
    return [program(layout, "story", "print('up')", restart=Restart.NEVER), program(layout, "stays", SLEEP)]


SCENARIOS: dict[str, Callable[[Layout], list[ProcessSpec]]] = {
    scenario.__name__: scenario for scenario in (services, sleepers, agent, family, slow, brief, broken, finite)
}


def main() -> None:
    """Run one scenario until told to stop."""
    layout = layout_for(Path(sys.argv[1]), ROOT)
    layout.prepare()
    terminal = Terminal()
    try:
        with Lock(layout.lock):
            state_file = StateFile(layout.states)
            end_leftovers(state_file, terminal)
            supervisor = Supervisor(layout.logs, state_file, terminal)
            supervisor.install_signal_handlers()
            try:
                supervisor.start(SCENARIOS[sys.argv[2]](layout))
                terminal.say("READY")
                supervisor.run()
            except StopRequested:
                terminal.say("Stopping.")
            finally:
                supervisor.stop_all()
                supervisor.close()
    except SupervisorError as error:
        sys.exit(f"{error.code}: {error}")


if __name__ == "__main__":
    main()
