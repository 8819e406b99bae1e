"""Requests through the nodes' gateways, and an exact account of how each one ended."""

import http.client
import itertools
import json
import random
import threading
import time
from dataclasses import dataclass, field

TIMEOUT_S = 12.0
THREADS = 4


@dataclass(frozen=True)
class Failure:
    """A request that was not answered with 200. `at` is Unix seconds when it began."""

    at: float
    ended: float
    gateway: str
    what: str


@dataclass
class Account:
    """What became of all requests so far."""

    answered: list[str] = field(default_factory=list)  # request ids, as the gateway named them
    failures: list[Failure] = field(default_factory=list)
    slowest_s: float = 0.0


class Traffic:
    """About `rate` requests a second from a few threads, each with its own connection to every gateway."""

    def __init__(self, ports: list[int], model: str, width: int, rate: float = 100.0) -> None:
        self._ports = ports
        self._path = f"/v2/models/{model}/infer"
        self._width = width
        self._gap_s = THREADS / rate
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._account = Account()
        self._threads = [threading.Thread(target=self._run, args=(seed,), daemon=True) for seed in range(THREADS)]

    def start(self) -> None:
        """Begin to send."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send no more, and wait for what is open."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def account(self) -> Account:
        """A copy of the account up to now."""
        with self._lock:
            return Account(list(self._account.answered), list(self._account.failures), self._account.slowest_s)

    def _run(self, seed: int) -> None:
        draw = random.Random(seed)
        connections: dict[int, http.client.HTTPConnection] = {}
        ports = itertools.cycle(self._ports)
        due = time.monotonic()
        while not self._stop.is_set():
            self._send(next(ports), connections, draw)
            # no catching up: an outage must not be followed by a burst
            due = max(due + self._gap_s, time.monotonic())
            self._stop.wait(due - time.monotonic())

    def _send(self, port: int, connections: dict[int, http.client.HTTPConnection], draw: random.Random) -> None:
        values = [round(draw.uniform(0.0, 1.0), 3) for _ in range(self._width)]
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, self._width], "data": values}]}
        headers = {"content-type": "application/json", "x-user-id": f"user-{draw.randrange(400)}"}
        began, clock = time.time(), time.monotonic()
        failed = ""
        try:
            connection = connections.setdefault(port, http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S))
            connection.request("POST", self._path, json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != http.client.OK:
                failed = f"HTTP {answer.status} {content[:160].decode(errors='replace')}"
        except (OSError, http.client.HTTPException) as lost:
            connections.pop(port).close()
            failed = repr(lost)
        with self._lock:
            self._account.slowest_s = max(self._account.slowest_s, time.monotonic() - clock)
            if failed:
                self._account.failures.append(Failure(began, time.time(), f"127.0.0.1:{port}", failed))
            else:
                self._account.answered.append(answer.headers["x-request-id"])
