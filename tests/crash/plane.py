"""The product under test, as supervisors of their own: `python -m tests.crash.plane HOME control|fleet`.

What `make up` starts, but in two parts, so that a test can pull the control plane's plug and leave the nodes running.
Everything else is taken from the supervisor as it is; the story is left out.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from controlplane.settings import Env
from controlplane.supervisor.credentials import load_or_create
from controlplane.supervisor.errors import StopRequested, SupervisorError
from controlplane.supervisor.launch import Options, assemble, end_leftovers
from controlplane.supervisor.layout import Layout, layout_for
from controlplane.supervisor.logs import Terminal
from controlplane.supervisor.manager import Supervisor
from controlplane.supervisor.processes import SIMULATED, Environments, Site, fleet, platform, prepare_step
from controlplane.supervisor.statefile import Lock, StateFile

ROOT = Path(__file__).resolve().parents[2]


def control(layout: Layout, supervisor: Supervisor) -> None:
    """Database, broker, web, live, workers, beat, edge."""
    env = Env()
    secrets = load_or_create(layout.secrets)
    options = Options(
        ROOT, layout.home, None, None, None, port=port_of(env.origin), gateway_port_base=0, nodes=env.nodes
    )
    infrastructure, site = assemble(options, layout, secrets)
    # how a management command is run beside it; the supervisor itself keeps this to its children
    environment_file(layout).touch(mode=0o600)
    environment_file(layout).write_text(json.dumps(dict(site.environments.worker)))
    supervisor.start(infrastructure.specs)
    infrastructure.after_start(secrets)
    supervisor.run_step(prepare_step(site))
    supervisor.start(platform(site))


def nodes(layout: Layout, supervisor: Supervisor) -> None:
    """The node agents; what they start (fork server, engines, gateway, comparator) is theirs."""
    env = Env()
    plain = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environments, port = Environments(plain, {}, {}), port_of(env.origin)
    site = Site(layout, environments, "127.0.0.1", port, env.gateway_port_base, env.nodes, SIMULATED)
    supervisor.start(fleet(site))


class Timed(Terminal):
    """Lines with the time of day: a failure is read by laying several logs side by side."""

    def write(self, text: str) -> None:
        """Print with the time before it."""
        super().write(f"{datetime.now(UTC):%H:%M:%S.%f} {text}")


PARTS: dict[str, Callable[[Layout, Supervisor], None]] = {"control": control, "fleet": nodes}


def port_of(origin: str) -> int:
    """The port in http://127.0.0.1:PORT."""
    return int(origin.rpartition(":")[2])


def environment_file(layout: Layout) -> Path:
    """Environment of the workers, as JSON."""
    return layout.run / "environment.json"


def state_file(layout: Layout, part: str) -> StateFile:
    """What runs of a part."""
    return StateFile(layout.run / f"{part}.json")


def main() -> None:
    """Run one part until told to stop."""
    layout, part = layout_for(Path(sys.argv[1]), ROOT), sys.argv[2]
    terminal, states = Timed(), state_file(layout, part)
    with Lock(layout.run / f"{part}.lock"):
        end_leftovers(states, terminal)
        supervisor = Supervisor(layout.logs, states, terminal)
        supervisor.install_signal_handlers()
        begun = time.monotonic()
        try:
            PARTS[part](layout, supervisor)
            terminal.say(f"READY after {time.monotonic() - begun:.1f} s")
            supervisor.run()
        except StopRequested:
            terminal.say("Stopping.")
        finally:
            supervisor.stop_all()
            supervisor.close()


if __name__ == "__main__":
    try:
        main()
    except SupervisorError as error:
        sys.exit(f"{error.code}: {error}")
