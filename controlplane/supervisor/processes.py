"""What `make up` runs, as data. To add a process, add a ProcessSpec to `platform`, `fleet` or `story`."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.supervisor.edge import find_caddy, http_problem, write_configuration
from controlplane.supervisor.layout import Layout
from controlplane.supervisor.spec import Probe, ProcessSpec, Restart

SIMULATED = "simulated"
ZONES = ("zone-a", "zone-b", "zone-c")
# The database and the broker are wave 0.
WAVE_PLATFORM, WAVE_ENTRY, WAVE_FLEET, WAVE_STORY = 1, 2, 3, 4


@dataclass(frozen=True)
class Environments:
    """Each process gets what it needs and no secret beyond: the director's and the owner's are the workers' alone."""

    plain: Mapping[str, str]  # nodes and publishers: clients of the control plane
    web: Mapping[str, str]  # + DATABASE_URL, REDIS_URL, secret key
    worker: Mapping[str, str]  # + the owner's database URL


@dataclass(frozen=True)
class Site:
    """One single-machine installation."""

    layout: Layout
    environments: Environments
    host: str
    port: int
    gateway_port_base: int
    nodes: int
    hardware: str = "none"  # what agents sample: nvml, simulated, none
    scenario: Path | None = None  # scripted faults of simulated GPUs

    @property
    def origin(self) -> str:
        """Where people and agents reach it."""
        return f"http://{self.host}:{self.port}"

    def node_name(self, number: int) -> str:
        """Name of the n-th node, from 1."""
        return f"node-{number}"

    def ports(self) -> list["PortClaim"]:
        """Fixed ports that must be free."""
        claims = [PortClaim("edge", self.port, "FARRIER_ORIGIN")]
        for number in range(1, self.nodes + 1):
            name = self.node_name(number)
            port = self.gateway_port_base + number
            claims.append(PortClaim(f"gateway of {name}", port, "FARRIER_GATEWAY_PORT_BASE", self.layout.node(name)))
        return claims


@dataclass(frozen=True)
class PortClaim:
    """A port, who wants it, and which setting moves it."""

    who: str
    port: int
    setting: str
    node_home: Path | None = None  # a gateway that serves on from here is the agent's to adopt


def python(*arguments: str) -> tuple[str, ...]:
    """A command of this very interpreter."""
    return (sys.executable, *arguments)


def prepare_step(site: Site) -> ProcessSpec:
    """Migrations, rights of the web's role, keys, users, static files."""
    return ProcessSpec(
        name="prepare",
        command=python("manage.py", "prepare"),
        wave=0,
        env=site.environments.worker,
        cwd=site.layout.root,
        ready_timeout_s=300,
    )


def platform(site: Site) -> list[ProcessSpec]:
    """The control plane, in starting order."""
    layout, env = site.layout, site.environments
    web = python(
        "-m", "gunicorn", "controlplane.wsgi:application", "--bind", f"unix:{layout.web_socket}",
        "--worker-class", "gthread", "--workers", "2", "--threads", "8", "--keep-alive", "30",
        "--graceful-timeout", "10", "--timeout", "60", "--no-control-socket", "--log-level", "warning",
    )  # fmt: skip
    live = python(
        "-m", "uvicorn", "controlplane.asgi:live", "--uds", str(layout.live_socket), "--no-access-log",
        "--log-level", "warning", "--timeout-graceful-shutdown", "3", "--forwarded-allow-ips", "*",
    )  # fmt: skip
    caddy = (find_caddy(), "run", "--config", str(write_configuration(layout, site.host, site.port)))
    host = {"Host": site.host}

    def spec(
        name: str, command: tuple[str, ...], wave: int, environment: Mapping[str, str], ready: Probe
    ) -> ProcessSpec:
        return ProcessSpec(name, command, wave, environment, layout.root, ready, stop_grace_s=15)

    return [
        spec(
            "web",
            web,
            WAVE_PLATFORM,
            env.web,
            Probe(lambda: http_problem(layout.web_socket, "/livez", host), recheck_s=5),
        ),
        spec(
            "live",
            live,
            WAVE_PLATFORM,
            env.web,
            Probe(lambda: http_problem(layout.live_socket, "/livez", host), recheck_s=5),
        ),
        _celery("worker", ("worker", "-Q", "default,audit,fleet,observability,rollouts", "--concurrency", "2"), site),
        _celery("jobs", ("worker", "-Q", "jobs", "--concurrency", "1"), site),
        _celery("beat", ("beat", "--schedule", str(layout.run / "beat-schedule"), "--pidfile="), site),
        spec("edge", caddy, WAVE_ENTRY, env.plain, Probe(lambda: http_problem(site.port, "/livez"), recheck_s=5)),
    ]


def _celery(name: str, arguments: tuple[str, ...], site: Site) -> ProcessSpec:
    is_beat = arguments[0] == "beat"
    options = () if is_beat else ("-n", f"{name}@%h", "--without-gossip", "--without-mingle")
    env = site.environments.web if is_beat else site.environments.worker
    return ProcessSpec(
        name=name,
        command=python("-m", "celery", "-A", "workers.celery", "--quiet", *arguments, *options, "--loglevel", "INFO"),
        # Beat comes late and leaves early: between them every tick has somebody to do it.
        wave=WAVE_ENTRY if is_beat else WAVE_PLATFORM,
        # Containers run everything as root, and ours accept no pickle, which is what the warning is about.
        env={**env, "PYTHONWARNINGS": "ignore:You're running the worker with superuser privileges"},
        cwd=site.layout.root,
        # They listen on no socket: a worker says itself once it takes messages.
        ready=Probe(settle_s=2.0) if is_beat else Probe(log_pattern=r"@\S+ ready\.$"),
        ready_timeout_s=90,
        stop_grace_s=30,  # the running tasks end first
    )


def fleet(site: Site) -> list[ProcessSpec]:
    """One agent a node. What it starts (fork server, engines, gateway, comparator) is the agent's to end."""
    return [_agent(site, number) for number in range(1, site.nodes + 1)]


def _agent(site: Site, number: int) -> ProcessSpec:
    home = site.layout.node(site.node_name(number))
    home.mkdir(parents=True, exist_ok=True)
    port = site.gateway_port_base + number
    command = python(
        "-m", "node.agent", "--home", str(home), "--server", site.origin,
        "--name", site.node_name(number), "--zone", ZONES[(number - 1) % len(ZONES)],
        "--gateway-port", str(port), "--join-token-file", str(home / "join-token"), "--hardware", site.hardware,
        *(("--scenario", str(site.scenario)) if site.scenario else ()),
    )  # fmt: skip
    return ProcessSpec(
        name=f"agent-{number}",
        command=command,
        wave=WAVE_FLEET,
        env=site.environments.plain,
        cwd=site.layout.root,
        ready=Probe(settle_s=2.0),
        stop_command=agent_shutdown(home),
        stop_grace_s=20,
        kill_group=False,  # engines serve on while their agent is away
    )


def agent_shutdown(home: Path) -> tuple[str, ...]:
    """Ends an agent's engines, gateway, comparator and fork server, whether the agent runs or not."""
    return python("-m", "node.agent", "shutdown", "--home", str(home))


def agent_status(home: Path) -> tuple[str, ...]:
    """Tells as JSON what an agent keeps running."""
    return python("-m", "node.agent", "status", "--home", str(home))


def story(site: Site) -> list[ProcessSpec]:
    """Gives simulated GPUs a past, pushes two models, drives traffic and starts the rollouts, up to the approval."""
    if not (site.layout.root / "demo" / "story.py").exists():
        return []
    history = ProcessSpec(
        name="history",
        command=python("-m", "demo.history"),
        wave=WAVE_STORY,
        env=site.environments.worker,
        cwd=site.layout.root,
        ready=Probe(settle_s=1.0),
        restart=Restart.NEVER,
    )
    return [
        *([history] if site.hardware == SIMULATED else []),
        ProcessSpec(
            name="story",
            command=python("-m", "demo.story", "--home", str(site.layout.home), "--server", site.origin),
            wave=WAVE_STORY,
            env=site.environments.plain,
            cwd=site.layout.root,
            ready=Probe(settle_s=1.0),
            restart=Restart.NEVER,
        ),
    ]
