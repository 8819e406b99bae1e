"""A whole installation under test: how to start it, hurt it, and look at it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import redis
from psycopg.rows import dict_row

from cli.client import Client
from controlplane.supervisor import procfs
from controlplane.supervisor.layout import layout_for
from demo.browse import Browser
from tests.crash.part import Part
from tests.crash.plane import ROOT, environment_file
from tests.crash.waiting import until

NODES = 2
DIED_TIMEOUT_S = 120.0
BACK_TIMEOUT_S = 120.0
# Named services would be used instead of the installation's own, and the test runner sets them.
FOREIGN = ("DATABASE_URL", "FARRIER_OWNER_DATABASE_URL", "REDIS_URL", "FARRIER_SECRET_KEY", "DJANGO_SETTINGS_MODULE")


@dataclass(frozen=True)
class Kill:
    """One SIGKILL that hit."""

    whom: str
    where: str
    at: float


@dataclass(frozen=True)
class Outage:
    """A time in which requests to a gateway may fail. Unix seconds."""

    port: int
    why: str
    begun: float
    ended: float


class Site:
    """One installation in a folder of its own, on free ports."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.layout = layout_for(folder / "var", ROOT)
        self.layout.prepare()
        self.failpoints = self.layout.home / "failpoints"
        self.failpoints.mkdir()
        self.port = procfs.free_port()
        self.origin = f"http://127.0.0.1:{self.port}"
        self._gateway_base = _free_gateways()
        environment = {name: value for name, value in os.environ.items() if name not in FOREIGN} | {
            "FARRIER_HOME": str(self.layout.home),
            "FARRIER_ORIGIN": self.origin,
            "FARRIER_GATEWAY_PORT_BASE": str(self._gateway_base),
            "FARRIER_NODES": str(NODES),
            "FARRIER_TICK_S": "2",
            "FARRIER_POLL_INTERVAL_S": "5",
            "FARRIER_ROLLOUT_LEASE_S": "10",
            # so short that both run out and are renewed all the time, under every kill
            "FARRIER_ASSIGNMENT_LIFE_S": "20",
            "FARRIER_CREDENTIAL_LIFE_S": "30",
            "FARRIER_FAILPOINTS": str(self.failpoints),
            **settings,
        }
        self.control = Part("control", self.layout, environment)
        self.fleet = Part("fleet", self.layout, environment)
        self.kills: list[Kill] = []
        self.outages: list[Outage] = []
        self.refusals: Counter[str] = Counter()  # reads over REST that the control plane could not answer
        self._armed: dict[str, str] = {}

    def start(self) -> None:
        """Bring everything up; two nodes are active afterwards."""
        self.control.start()
        self.fleet.start()
        secrets = json.loads(self.layout.secrets.read_text())
        self.api = Client(self.origin, secrets["ci_token"], tries=12)
        self.lead = Browser(self.origin, "lead", secrets["users"]["lead"])
        until("all nodes are active", self._all_active, 60.0)

    def _all_active(self) -> bool:
        return [row["phase"] for row in self.api.all("nodes")] == ["active"] * NODES

    def stop(self) -> None:
        """Orderly: nodes first."""
        self.fleet.stop()
        self.control.stop()

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def ports(self) -> list[int]:
        """The gateways' ports, node by node."""
        return [self._gateway_base + number for number in range(1, NODES + 1)]

    @property
    def release_key(self) -> Path:
        """The publisher's key."""
        return self.layout.home / "keys" / "release" / "release.pem"

    def rows(self, query: str, **values: Any) -> list[dict[str, Any]]:
        """Rows of the database, read as its owner."""
        url = json.loads(environment_file(self.layout).read_text())["FARRIER_OWNER_DATABASE_URL"]
        with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
            return connection.cursor(row_factory=dict_row).execute(query, values).fetchall()

    def manage(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a management command in the workers' environment."""
        environment = json.loads(environment_file(self.layout).read_text())
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)

    def node_home(self, number: int) -> Path:
        """Home of the n-th node's agent."""
        return self.layout.node(f"node-{number}")

    def node_json(self, number: int, name: str) -> Any:
        """A JSON file of a node's home; None when it is not there (yet)."""
        try:
            return json.loads((self.node_home(number) / name).read_text())
        except FileNotFoundError:
            return None

    def engine_pid(self, number: int, model: str, version: int) -> int | None:
        """Pid of a ready engine of a node."""
        for slot in self.node_json(number, "slots.json") or []:
            if (slot["model"], slot["version"], slot["state"]) == (model, version, "ready"):
                return int(slot["pid"])
        return None

    def tails(self, lines: int = 25) -> str:
        """The last lines of every log, for whoever reads a failure."""
        parts = [_tail(self.layout.home, part.log, 6 * lines) for part in (self.control, self.fleet)]
        logs = sorted(self.layout.logs.glob("*.log"))
        for number in range(1, NODES + 1):
            logs += sorted((self.node_home(number) / "logs").glob("*.log"))
        return "\n".join(parts + [_tail(self.layout.home, path, lines) for path in logs])

    # -- hurting ------------------------------------------------------------------------------------------------------

    def arm(self, whom: str, *places: str) -> None:
        """Whoever passes one of these places next dies there, once."""
        for place in places:
            self._armed[place] = whom
            (self.failpoints / place).touch()

    def died(self, *places: str) -> None:
        """Wait until somebody has died at each of these places."""
        for place in places:
            until(f"{self._armed[place]} dies at {place}", partial(self._took, place), DIED_TIMEOUT_S)
            self.kills.append(Kill(self._armed.pop(place), place, time.time()))

    def _took(self, place: str) -> bool:
        found = next(self.failpoints.glob(f"{place}.died-*"), None)
        if found is None:
            return False
        pid = int(found.name.rpartition("-")[2])
        found.unlink()
        until(f"process {pid} is gone", lambda: not _runs(pid), 10.0)
        return True

    def kill(self, pid: int, whom: str, where: str) -> None:
        """SIGKILL a process and see it go."""
        os.kill(pid, signal.SIGKILL)
        self.kills.append(Kill(whom, where, time.time()))
        until(f"{whom} ({pid}) is gone", lambda: not _runs(pid), 10.0)

    def kill_service(self, name: str, where: str) -> None:
        """SIGKILL a process of the control plane; the supervisor brings it back."""
        before = self.control.rows()[name]
        assert before.pid is not None
        self.kill(before.pid, name, where)

    def is_back(self, name: str, kills: int = 1) -> bool:
        """Whether a process of the control plane is ready again after it was killed."""
        row = self.control.rows().get(name)
        return row is not None and row.state == "ready" and row.restarts >= kills

    def database_backend(self) -> int:
        """Pid of a backend that works for web or workers: its death makes PostgreSQL end all others and recover."""
        query = "SELECT pid FROM pg_stat_activity WHERE usename = 'farrier_app' ORDER BY state_change DESC LIMIT 1"
        return int(self.rows(query)[0]["pid"])

    def wipe_broker(self) -> None:
        """FLUSHALL: every message and every queue is gone."""
        url = json.loads(environment_file(self.layout).read_text())["REDIS_URL"]
        with redis.Redis.from_url(url) as broker:
            broker.flushall()

    def kill_on_node(self, number: int, name: str, where: str) -> int:
        """SIGKILL what an agent keeps running (gateway, comparator, zygote); returns the pid it had."""
        pid = int(self.node_json(number, "processes.json")[name]["pid"])
        self.kill(pid, f"{name} of node-{number}", where)
        return pid

    def is_replaced(self, number: int, name: str, pid: int) -> bool:
        """Whether the agent has started another one in its place."""
        entry = self.node_json(number, "processes.json").get(name)
        return entry is not None and entry["pid"] != pid and _runs(int(entry["pid"]))

    @contextmanager
    def outage(self, number: int, why: str) -> Iterator[None]:
        """Requests to this node's gateway may fail while the block runs, and at no other time."""
        begun = time.time()
        yield
        self.outages.append(Outage(self.ports[number - 1], why, begun, time.time()))

    def gateway_answers(self, number: int) -> bool:
        """Whether a node's gateway takes connections."""
        try:
            with socket.create_connection(("127.0.0.1", self.ports[number - 1]), timeout=1.0):
                return True
        except OSError:
            return False


def _runs(pid: int) -> bool:
    """Whether a process is there; a zombie isn't."""
    return procfs.identify(pid) is not None


def _tail(home: Path, path: Path, lines: int) -> str:
    text = path.read_text(errors="replace").strip() if path.exists() else ""
    return f"----- {path.relative_to(home)}\n" + "\n".join(text.splitlines()[-lines:])


def _free_gateways() -> int:
    """A base such that the ports that follow are free."""
    for base in range(23_000, 30_000, 10):
        if all(procfs.port_is_free(base + number) for number in range(1, NODES + 1)):
            return base
    raise OSError("no free ports in a row for the gateways")
