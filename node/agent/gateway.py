"""The node's Envoy: started detached, told where requests go by files, asked over its admin socket what is in force."""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from node.agent import routes as config
from node.agent.files import read_json, write_atomically, write_json
from node.agent.home import Home
from node.agent.planner import Key, ModelRoute
from node.agent.processes import Process
from node.agent.records import Json, route_from_json, route_to_json
from node.agent.services import Records, Service, Status
from node.wire.client import UnixClient
from protocol.failpoints import pass_by

log = logging.getLogger(__name__)

APPLY_TIMEOUT_S = 2.0
_ASK_EVERY_S = 0.005
_VERSION = re.compile(r'^(cluster_manager\.cds|http\.gateway\.rds\.models)\.version_text: "([^"]*)"$', re.MULTILINE)
_ACTIVE = re.compile(r"^http\.gateway\.downstream_rq_active: (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Listen:
    """Where the gateway takes requests."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The address for clients on this host."""
        return f"http://{self.host}:{self.port}"


class Gateway:
    """One node's gateway. Used by one thread."""

    def __init__(self, home: Home, records: Records, listen: Listen, node: str) -> None:
        self._node = node
        self._files = config.Gateway(
            node=node,
            host=listen.host,
            port=listen.port,
            admin_socket=home.socket("envoy.admin"),
            routes_file=home.gateway / "routes.json",
            clusters_file=home.gateway / "clusters.json",
        )
        self._state_file = home.gateway / "state.json"
        self._comparator = home.socket("cmp.sock")
        self._admin = UnixClient(self._files.admin_socket, timeout_s=1.0)
        bootstrap_file = home.gateway / "bootstrap.json"
        bootstrap = json.dumps(config.bootstrap(self._files), indent=1).encode()
        if not bootstrap_file.exists() or bootstrap_file.read_bytes() != bootstrap:
            write_atomically(bootstrap_file, bootstrap)
        self._known: dict[Key, tuple[Path, float]] = {}  # sockets of engines, and when each was last asked for
        self._wanted = self._stored_routes()
        # the gateway doesn't start to listen before both files are there
        if not self._files.clusters_file.exists():
            self._write_clusters({})
        if not self._files.routes_file.exists():
            self._write_routes(())
        command = [find_envoy(), "-c", str(bootstrap_file), "--concurrency", "1", "--disable-hot-restart"]
        self.service = Service(
            home,
            records,
            "gateway",
            [*command, "--log-level", "warning", "--file-flush-interval-msec", "500"],
            is_ready=lambda: self._versions() is not None,
            reads=bootstrap,
        )

    def ensure(self, now_s: float) -> Status:
        """Keep it running."""
        return self.service.ensure(now_s)

    def in_force(self) -> tuple[ModelRoute, ...] | None:
        """The routes that the gateway follows now; None when it doesn't say, or follows an earlier file still."""
        versions = self._versions()
        if versions is None or versions[1] != _version_of(self._files.routes_file):
            return None
        return self._wanted

    @property
    def wanted(self) -> tuple[ModelRoute, ...]:
        """The routes last written, which a gateway that is just being restarted will follow."""
        return self._wanted

    def set_clusters(self, engines: Mapping[Key, Path]) -> bool:
        """Make the gateway know these engines' sockets, before a route names them and until none does any more.

        True once it does. One that left is forgotten only when no request can be on its way to it any more: a request
        that an engine's death sent back is asked again at the same cluster, and would be lost without it.
        """
        now_s = time.monotonic()
        self._known |= {key: (path, now_s) for key, path in engines.items()}
        self._known = {key: seen for key, seen in self._known.items() if now_s - seen[1] <= config.REQUEST_TIMEOUT_S}
        if self._write_clusters({key: path for key, (path, _) in self._known.items()}):
            return self._await(0, self._files.clusters_file)
        versions = self._versions()
        return versions is not None and versions[0] == _version_of(self._files.clusters_file)

    def set_routes(self, routes: tuple[ModelRoute, ...]) -> bool:
        """Write the routes and wait until they are in force; False when the gateway doesn't say so in time."""
        write_json(self._state_file, [route_to_json(route) for route in routes])
        self._wanted = routes
        self._write_routes(routes)
        pass_by("after_routes_written")
        return self._await(1, self._files.routes_file)

    def _stored_routes(self) -> tuple[ModelRoute, ...]:
        stored: list[Json] = read_json(self._state_file) or []
        routes = tuple(route_from_json(value) for value in stored)
        if self._files.routes_file.exists():
            # a crash between state and routes file: the file is what the gateway follows, so it must not lag behind
            self._write_routes(routes)
        return routes

    def _write_routes(self, routes: tuple[ModelRoute, ...]) -> bool:
        content = config.route_table(routes, node=self._node, version="")
        return _write_versioned(self._files.routes_file, content)

    def _write_clusters(self, engines: Mapping[Key, Path]) -> bool:
        return _write_versioned(self._files.clusters_file, config.clusters(engines, self._comparator, version=""))

    def _await(self, which: int, path: Path) -> bool:
        version, deadline = _version_of(path), time.monotonic() + APPLY_TIMEOUT_S
        while time.monotonic() < deadline:
            versions = self._versions()
            if versions is None:
                return False
            if versions[which] == version:
                return True
            time.sleep(_ASK_EVERY_S)
        log.error("the gateway did not take %s within %.0f s; see its log", path.name, APPLY_TIMEOUT_S)
        return False

    def _versions(self) -> tuple[str, str] | None:
        """Versions of clusters and routes in force; None when the gateway doesn't answer or listens to nothing yet."""
        text = _ask(self._admin, "/stats?filter=version_text")
        if text is None:
            return None
        found = dict(_VERSION.findall(text))
        if "http.gateway.rds.models" not in found:
            return None
        return found.get("cluster_manager.cds", ""), found["http.gateway.rds.models"]


def find_envoy() -> str:
    """The gateway's program: beside this interpreter, else on PATH."""
    beside = Path(sys.prefix) / "bin" / "envoy"
    return str(beside) if beside.exists() else shutil.which("envoy") or "envoy"


def _ask(admin: UnixClient, path: str, method: str = "GET") -> str | None:
    try:
        answer = admin.request(method, path)
    except (OSError, http.client.HTTPException):
        return None
    return answer.body.decode(errors="replace") if answer.status == http.client.OK else None


def _write_versioned(path: Path, content: Json) -> bool:
    """Replace a watched file unless it says the same already; its version is a digest of what it says."""
    version = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    if path.exists() and _version_of(path) == version:
        return False
    write_json(path, {**content, "version_info": version})
    return True


def _version_of(path: Path) -> str:
    stored: Json = read_json(path) or {}
    return str(stored.get("version_info", ""))


def end_gracefully(home: Home, process: Process, *, grace_s: float) -> None:
    """End a gateway: take no more requests, finish those that are open, stop."""
    admin = UnixClient(home.socket("envoy.admin"), timeout_s=1.0)
    _ask(admin, "/drain_listeners?inboundonly", "POST")
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        active = _ACTIVE.search(_ask(admin, "/stats?filter=downstream_rq_active") or "")
        if active is None or active[1] == "0":
            break
        time.sleep(0.05)
    process.end(grace_s=grace_s)
