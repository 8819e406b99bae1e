"""Real artifacts, a real fork server and real engines for the tests of everything that runs on a node."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from aifb.importers import digits, minilm
from aifb.importers.pack import Packed
from node.wire.client import Answer, UnixClient
from protocol.spool import read_messages
from protocol.telemetry_pb2 import InferenceRow

ROOT = Path(__file__).resolve().parents[2]
DEPLOYMENT = "0190b0a0-0000-7000-8000-000000000001"


@dataclass(frozen=True)
class Artifacts:
    """The story's models as files, and the modules that they were captured from."""

    minilm: Mapping[str, Packed]  # "v1" float32, "v2" int8 per row, "v3" int8 per tensor
    digits: Packed
    embedder: minilm.SentenceEmbedder
    classifier: digits.DigitClassifier


@cache
def artifacts() -> Artifacts:
    """Built once per test process, in a few seconds, and removed when it ends."""
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="farrier-artifacts-"))
    atexit.register(shutil.rmtree, folder)
    captured = minilm.capture_minilm()
    schemes = {"v1": None, "v2": "int8_per_row", "v3": "int8_per_tensor"}
    packed = {
        name: minilm.pack_minilm(folder / f"minilm-{name}.aifb", build="test", quantise=scheme, captured=captured)
        for name, scheme in schemes.items()
    }
    trained = digits.train(1)
    return Artifacts(
        packed, digits.pack_digits(folder / "digits.aifb", trained, build="test"), minilm.load(), trained.module
    )


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 30.0) -> Any:
    """Poll until `condition` gives something true, and return that."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {timeout_s} s")


@dataclass
class Engine:
    """A running engine: its process, sockets and files."""

    pid: int
    start_time: int
    socket: Path
    health_socket: Path
    spool_dir: Path
    log: Path
    model: str

    def health(self) -> dict[str, Any]:
        """One answer of the health socket."""
        with UnixClient(self.health_socket, timeout_s=5) as client:
            return dict(client.request("GET", "/").json())

    def wait_ready(self) -> dict[str, Any]:
        """Until the engine serves; fails at once where it says that it can't."""

        def ready() -> dict[str, Any] | None:
            health = self.health()
            assert health["phase"] != "failed", (health["error"], self.log.read_text())
            return health if health["ready"] else None

        return dict(wait_until(ready, "the engine's readiness"))

    def client(self, *, reopens: bool = True) -> UnixClient:
        """A connection of its own to the serving socket."""
        return UnixClient(self.socket, timeout_s=20, reopens=reopens)

    def infer(self, inputs: list[dict[str, Any]], headers: Mapping[str, str] = {}, **body: Any) -> Answer:
        """One inference request on a connection of its own."""
        with self.client() as client:
            return infer(client, self.model, inputs, headers, **body)

    def is_alive(self) -> bool:
        """Whether the process still runs (a zombie doesn't)."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
        except FileNotFoundError:
            return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the engine."""
        os.kill(self.pid, number)

    def stop(self) -> None:
        """Drain it and wait for its end."""
        if self.is_alive():
            self.signal(signal.SIGTERM)
            wait_until(lambda: not self.is_alive(), "the engine's end")

    def rows(self) -> list[InferenceRow]:
        """All published rows, oldest first."""
        return [row for path in sorted(self.spool_dir.glob("inf-*.log")) for row in read_messages(path, InferenceRow)]


def infer(
    client: UnixClient, model: str, inputs: list[dict[str, Any]], headers: Mapping[str, str] = {}, **body: Any
) -> Answer:
    """POST an Open Inference Protocol request."""
    raw = json.dumps({"inputs": inputs, **body}).encode()
    return client.request("POST", f"/v2/models/{model}/infer", raw, {"content-type": "application/json", **headers})


def texts(*values: str) -> list[dict[str, Any]]:
    """The embedder's input."""
    return [{"name": "text", "datatype": "BYTES", "shape": [len(values)], "data": list(values)}]


def pixels(rows: list[list[float]]) -> list[dict[str, Any]]:
    """The digit classifier's input."""
    return [{"name": "pixels", "datatype": "FP32", "shape": [len(rows), 64], "data": [v for row in rows for v in row]}]


@dataclass
class ForkServer:
    """A fork server process and a client of it."""

    folder: Path
    process: subprocess.Popen[bytes]
    client: socket.socket
    count: int = 0
    engines: list[Engine] = field(default_factory=list)

    def ask(self, message: Mapping[str, Any] | bytes, fds: list[int] | None = None) -> dict[str, Any]:
        """One packet there, one back."""
        raw = message if isinstance(message, bytes) else json.dumps(message).encode()
        socket.send_fds(self.client, [raw], fds or [])
        return dict(json.loads(self.client.recv(65536)))

    def message(self, packed: Packed, model: str, version: int) -> dict[str, Any]:
        """A spawn message with paths of its own."""
        self.count += 1
        folder = self.folder / f"e{self.count}"
        folder.mkdir()
        return {
            "cmd": "spawn",
            "slot": f"slot-{self.count}",
            "model": model,
            "version": version,
            "digest": packed.written.digest,
            "lineage": packed.lineage.as_dict(),
            "socket": str(folder / "s.sock"),
            "health_socket": str(folder / "h.sock"),
            "spool_dir": str(folder / "spool"),
            "log": str(folder / "engine.log"),
            "threads": 1,
            "deployment": DEPLOYMENT,
            "sandbox": True,
        }

    def start(self, packed: Packed, model: str, version: int = 1, **changes: Any) -> Engine:
        """Spawn an engine for an artifact; it may still be loading when this returns."""
        message = {**self.message(packed, model, version), **changes}
        with open(packed.written.path, "rb") as artifact:
            answer = self.ask(message, [artifact.fileno()])
        assert answer["error"] is None, answer
        paths = (Path(message[key]) for key in ("socket", "health_socket", "spool_dir", "log"))
        engine = Engine(answer["pid"], answer["start_time"], *paths, model)
        self.engines.append(engine)
        return engine

    def stop(self) -> None:
        """End the engines that are left, then the fork server."""
        for engine in self.engines:
            if engine.is_alive():
                engine.signal(signal.SIGKILL)
        self.client.close()
        self.process.terminate()
        self.process.wait(timeout=10)


@contextmanager
def fork_server(env: Mapping[str, str] = {}) -> Iterator[ForkServer]:
    """A fork server in a folder with short paths: a unix socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="fz-") as name:
        folder = Path(name)
        path = folder / "z.sock"
        command = [sys.executable, "-m", "node.engine.zygote", "--socket", str(path)]
        with (folder / "zygote.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, **env})
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def connected() -> bool:
            assert process.poll() is None, (folder / "zygote.log").read_text()
            try:
                client.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            return True

        server = ForkServer(folder, process, client)
        try:
            wait_until(connected, "the fork server's start", 60)
            yield server
        finally:
            server.stop()
