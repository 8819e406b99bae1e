"""`make up`, from an empty folder to the banner."""

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

from controlplane.supervisor import procfs
from controlplane.supervisor.banner import banner
from controlplane.supervisor.credentials import Secrets, load_or_create
from controlplane.supervisor.errors import StopRequested, SupervisorError
from controlplane.supervisor.layout import Layout, layout_for
from controlplane.supervisor.logs import Terminal
from controlplane.supervisor.manager import Supervisor
from controlplane.supervisor.postgres import APP, OWNER, Cluster, cluster_folder, database_problem, find_runner
from controlplane.supervisor.processes import SIMULATED, Environments, Site, fleet, platform, prepare_step, story
from controlplane.supervisor.redis import Broker
from controlplane.supervisor.spec import ProcessSpec
from controlplane.supervisor.statefile import Lock, ProcessRow, StateFile

LEFTOVER_GRACE_S = 20.0


@dataclass(frozen=True)
class Options:
    """What the settings say about a start. None: embed the service."""

    root: Path
    home: Path
    database_url: str | None
    owner_database_url: str | None
    redis_url: str | None
    host: str = "127.0.0.1"
    port: int = 8700
    gateway_port_base: int = 8710
    nodes: int = 3
    hardware: str = "auto"


def up(options: Options, terminal: Terminal) -> None:
    """Start everything and watch it until Ctrl-C or `make down`. Raises SupervisorError with a sentence."""
    layout = layout_for(options.home, options.root)
    layout.prepare()
    with Lock(layout.lock):
        state_file = StateFile(layout.states)
        end_leftovers(state_file, terminal)
        supervisor = Supervisor(layout.logs, state_file, terminal)
        supervisor.install_signal_handlers()
        try:
            _start(options, layout, supervisor, terminal)
            supervisor.run()
        except StopRequested:
            terminal.say("Stopping in order; Ctrl-C once more kills instead.")
        finally:
            supervisor.stop_all()
            supervisor.close()


def _start(options: Options, layout: Layout, supervisor: Supervisor, terminal: Terminal) -> None:
    begun = time.monotonic()
    secrets = load_or_create(layout.secrets)
    terminal.say(f"Starting Farrier, state in {options.home.resolve()}")
    infrastructure, site = assemble(options, layout, secrets)
    check_ports(site)
    supervisor.start(spec for spec in infrastructure.specs)
    infrastructure.after_start(secrets)
    supervisor.run_step(prepare_step(site))
    supervisor.start(platform(site))
    supervisor.start(fleet(site))
    terminal.say(banner(site, secrets, time.monotonic() - begun))
    supervisor.start(story(site))


@dataclass(frozen=True)
class Infrastructure:
    """Database and broker: ours, or given by their URLs."""

    cluster: Cluster | None
    specs: list[ProcessSpec]
    database_url: str

    def after_start(self, secrets: Secrets) -> None:
        """Roles of the embedded database; for a given one, that it answers at all."""
        if self.cluster is not None:
            self.cluster.create_roles(secrets.postgres_owner, secrets.postgres_app)
        elif (problem := database_problem(self.database_url)) is not None:
            raise SupervisorError("no_database", f"The database of DATABASE_URL can't be used: {problem}.")


def assemble(options: Options, layout: Layout, secrets: Secrets) -> tuple[Infrastructure, Site]:
    """Decide what is embedded, on which ports, and what each process may know."""
    hardware = _hardware(options.hardware)
    plain = _inherited(options, layout, hardware)
    specs: list[ProcessSpec] = []
    cluster = None
    database_url, owner_url, redis_url = options.database_url, options.owner_database_url, options.redis_url
    if database_url is None:
        folder = cluster_folder(layout.home)
        cluster = Cluster(folder, _remembered_port(layout, "postgres"), secrets.postgres_superuser, find_runner(folder))
        cluster.create()
        specs.append(cluster.spec(layout.home, plain))
        database_url = cluster.url(APP, secrets.postgres_app)
        owner_url = cluster.url(OWNER, secrets.postgres_owner)
    if redis_url is None:
        broker = Broker(layout.redis, _remembered_port(layout, "redis"), secrets.redis)
        specs.append(broker.spec(layout.home, plain))
        redis_url = broker.url
    web = {
        "FARRIER_METRICS_TOKEN": secrets.metrics_token,
        **plain,
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "FARRIER_SECRET_KEY": secrets.secret_key,
    }
    keys = layout.home / "keys"
    signers = {
        "FARRIER_DIRECTOR_KEY": str(keys / "director" / "director.pem"),
        "FARRIER_AUDIT_KEY": str(keys / "audit" / "audit.pem"),
    }
    worker = {**signers, **web, **({"FARRIER_OWNER_DATABASE_URL": owner_url} if owner_url else {})}
    environments = Environments(plain, web, worker)
    site = Site(
        layout,
        environments,
        options.host,
        options.port,
        options.gateway_port_base,
        options.nodes,
        hardware,
        options.root / "demo" / "scenario.json" if hardware == SIMULATED else None,
    )
    return Infrastructure(cluster, specs, database_url), site


def _hardware(wanted: str) -> str:
    """Decide `auto`: a machine without NVIDIA's driver gets simulated GPUs, which say so wherever they are shown."""
    if wanted != "auto":
        return wanted
    return "nvml" if find_library("nvidia-ml") else "simulated"


def _inherited(options: Options, layout: Layout, hardware: str) -> dict[str, str]:
    ours = ("DATABASE_URL", "REDIS_URL", "FARRIER_OWNER_DATABASE_URL", "FARRIER_SECRET_KEY")
    env = {name: value for name, value in os.environ.items() if name not in ours}
    if hardware == SIMULATED:
        # a demonstration's fault lasts minutes: its alert may not wait for five of them; the alerts' page says how long
        env = {"FARRIER_ALERT_FOR_S": "60"} | env
    return env | {
        "FARRIER_HOME": str(layout.home),
        "FARRIER_ORIGIN": f"http://{options.host}:{options.port}",
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "PYTHONUNBUFFERED": "1",
    }


def _remembered_port(layout: Layout, name: str) -> int:
    """A free port of loopback, the same one at every start as long as nobody else took it."""
    path = layout.home / f"{name}.port"
    if path.exists():
        port = int(path.read_text())
        if procfs.port_is_free(port):
            return port
    port = procfs.free_port()
    path.write_text(f"{port}\n")
    return port


def check_ports(site: Site) -> None:
    """Raise SupervisorError with a sentence when a fixed port is taken."""
    for claim in site.ports():
        if procfs.port_is_free(claim.port):
            continue
        owner = procfs.listener_of(claim.port)
        # Engines and gateways outlive a killed supervisor and its agents: the next agent takes them over.
        if owner and claim.node_home and str(claim.node_home) in procfs.command_line(owner[0]):
            continue
        by = f"by {owner[1]} (process {owner[0]})" if owner else "by another program"
        raise SupervisorError(
            "port_taken",
            f"Port {claim.port}, which the {claim.who} needs, is taken {by}: stop it, or choose others with "
            f"{claim.setting}.",
        )


def end_leftovers(state_file: StateFile, terminal: Terminal, grace_s: float = LEFTOVER_GRACE_S) -> None:
    """After a kill -9 of a supervisor: wait for what the kernel told to end, then kill what won't."""
    left = {row.name: remains for row in state_file.read() if (remains := _remains(row))}
    if left:
        terminal.say(f"Ending what an earlier start left behind: {', '.join(left)}")
    deadline = time.monotonic() + grace_s
    # The kernel's signal reached the processes themselves, not what they had started.
    while time.monotonic() < deadline and any(procfs.is_alive(remains[0]) for remains in left.values()):
        time.sleep(0.1)
    for process in itertools.chain.from_iterable(left.values()):
        if procfs.is_alive(process):
            os.kill(process.pid, signal.SIGKILL)
    state_file.remove()


def _remains(row: ProcessRow) -> list[procfs.ProcessId]:
    """What still runs of a process: itself first, then what it started, unless that is meant to outlive it."""
    if row.identity is None:
        return []
    itself = [row.identity] if procfs.is_alive(row.identity) else []
    others = procfs.session_members(row.identity) if row.owns_session else []
    return itself + [process for process in others if process != row.identity]


def run_quietly(command: tuple[str, ...], cwd: Path, env: Mapping[str, str]) -> str | None:
    """Run to the end; its last line of output when it failed."""
    done = subprocess.run(command, cwd=cwd, env=dict(env), capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return None if done.returncode == 0 else (lines[-1] if lines else f"exit status {done.returncode}")
