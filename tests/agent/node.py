"""A whole node for tests: the real agent as a process, with real fork server, engines, gateway and comparator."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from aifb.trust import Deployment
from node.agent.home import Home
from node.agent.lifecycle import shutdown, status
from protocol.messages import DeploymentReport
from tests.agent.artifacts import MODEL
from tests.agent.plane import Plane

READY_S = 150.0  # generous: these tests share their cores with others
INPUT = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 24], "data": [[0.5] * 24]}]}

# the production command line with another clock passed in; its first argument is taken off
WITH_CLOCK = """
import sys, time
from node.agent import __main__ as command
ahead = float(sys.argv.pop(1))
raise SystemExit(command.main(now=lambda: time.time() + ahead))
"""


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(what: Callable[[], Any], why: str, timeout_s: float = READY_S) -> Any:
    """Wait for something true and return it."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {why}"
        time.sleep(0.05)


@dataclass
class Node:
    """One node and the processes that it consists of."""

    plane: Plane
    home: Home
    port: int = field(default_factory=free_port)
    agent: subprocess.Popen[bytes] | None = None

    def start(self, *more: str, clock_ahead_s: float = 0.0, **environment: str) -> None:
        """Start (or start again) the agent with `more` arguments, and a clock that is ahead by so much."""
        token = self.home.path.parent / f"{self.home.path.name}.token"
        token.write_text(self.plane.join_token + "\n")
        program = ["-c", WITH_CLOCK, str(clock_ahead_s)] if clock_ahead_s else ["-m", "node.agent"]
        command = [
            *(sys.executable, *program, "--home", str(self.home.path), "--server", self.plane.url),
            *("--name", "node-1", "--zone", "zone-a", "--join-token-file", str(token)),
            *("--gateway-port", str(self.port), "--telemetry-interval", "0.3", *more),
        ]
        self.agent = subprocess.Popen(command, env={**os.environ, **environment})

    def settle(self, *deployments: Deployment, sequence: int | None = None) -> None:
        """Assign these, and wait until the far side is told that each runs with its weight."""
        number = sequence if sequence is not None else self.plane.sequence + 1
        self.plane.assign(self.plane.director.bundle(number, deployments, node=self.plane.node), number)
        for wanted in deployments:
            until(lambda d=wanted: self.is_running(d.id, d.weight), f"{wanted.model} {wanted.version} runs")

    def kill_agent(self) -> None:
        """kill -9 the agent alone."""
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()

    def infer(
        self, headers: Mapping[str, str] | None = None, *, model: str = MODEL, timeout_s: float = 30.0
    ) -> httpx2.Response:
        """One request through the gateway."""
        url = f"http://127.0.0.1:{self.port}/v2/models/{model}/infer"
        return httpx2.post(url, json=INPUT, headers=dict(headers or {}), timeout=timeout_s, trust_env=False)

    def is_up(self) -> bool:
        """Whether the gateway takes connections."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def versions(self, count: int) -> Counter[str]:
        """Which versions answer `count` requests."""
        with httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30.0, trust_env=False) as client:
            answers = [client.post(f"/v2/models/{MODEL}/infer", json=INPUT) for _ in range(count)]
        assert {answer.status_code for answer in answers} == {200}
        return Counter(answer.headers["x-farrier-version"] for answer in answers)

    def engine_pid(self, version: int) -> int | None:
        """The process of a version's engine."""
        for engine in status(self.home)["engines"]:
            if engine["version"] == version and engine["is_alive"]:
                return int(engine["pid"])
        return None

    def pids(self) -> dict[str, int]:
        """Every detached process that runs, by name."""
        seen = status(self.home)
        found = {name: entry["pid"] for name, entry in seen["processes"].items() if entry["is_alive"]}
        return found | {f"engine-{e['version']}": e["pid"] for e in seen["engines"] if e["is_alive"]}

    def reports(self) -> dict[str, DeploymentReport]:
        """The last reported state of each deployment."""
        return {str(report.id): report for report in self.plane.polls[-1].deployments} if self.plane.polls else {}

    def is_running(self, deployment_id: str, weight: int | None = None) -> bool:
        """Whether the far side was told that this deployment runs (with this weight in force)."""
        report = self.reports().get(deployment_id)
        return report is not None and report.state == "running" and weight in (None, report.weight_in_force)


class Load:
    """Clients that ask without a pause from several threads, and note every answer."""

    def __init__(self, node: Node, threads: int = 4) -> None:
        self._node = node
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(threads)]
        self.statuses: Counter[int | str] = Counter()
        self.versions: Counter[str] = Counter()
        self.ids: set[str] = set()

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        until(lambda: sum(self.statuses.values()) >= 20, "the load is there")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        base = f"http://127.0.0.1:{self._node.port}"
        with httpx2.Client(base_url=base, timeout=30.0, trust_env=False) as client:
            turn = 0
            while not self._stop.is_set():
                turn += 1
                headers = {"x-user-id": f"user-{number}-{turn % 50}"}
                try:
                    answer = client.post(f"/v2/models/{MODEL}/infer", json=INPUT, headers=headers)
                except httpx2.HTTPError as lost:
                    self.statuses[type(lost).__name__] += 1
                    continue
                self.statuses[answer.status_code] += 1
                self.versions[answer.headers.get("x-farrier-version", "none")] += 1
                self.ids.add(answer.headers.get("x-request-id", "none"))


@contextmanager
def node_of(plane: Plane, folder: Path) -> Iterator[Node]:
    """A node that is ended whole after the block."""
    node = Node(plane, Home(folder / "home"))
    node.home.path.mkdir(exist_ok=True)
    try:
        yield node
    finally:
        if node.agent is not None and node.agent.poll() is None:
            node.agent.send_signal(signal.SIGTERM)
            try:
                node.agent.wait(20)
            except subprocess.TimeoutExpired:
                node.kill_agent()  # nothing may be left behind, whatever went wrong
        shutdown(node.home, lambda _: None)
