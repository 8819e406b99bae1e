"""The far side for tests: a small HTTP server that speaks the agent protocol with the shared signing code.

It stands where the control plane stands (tests/sim runs the agent's client against the real one) and can misbehave in
the ways that a network, a disk or an attacker would.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

from aifb import tree
from protocol.messages import AssignmentBundle, ConditionReport, PollRequest
from protocol.signing import MAX_SKEW_S, canonical, canonical_enrol, parse_headers, verify
from protocol.telemetry_pb2 import ComparisonRow, EngineSamples, GpuSamples, InferenceRow, TelemetryBatch
from tests.agent.keys import Director


@dataclass
class Published:
    """One artifact as the far side serves it; a test may swap any part."""

    manifest: bytes
    content: bytes
    leaves: bytes = b""


@dataclass
class Plane:
    """State of the far side, changed by tests and by requests."""

    director: Director = field(default_factory=Director)
    node: str = field(default_factory=lambda: str(uuid4()))
    public_key: bytes = b""
    generation: int = 1
    clock_ahead_s: float = 0.0
    expires: str = "2035-01-01T00:00:00Z"
    refuse: tuple[int, dict[str, Any]] | None = None
    bundle: AssignmentBundle | None = None
    sequence: int = 0
    interval_s: float = 0.2
    artifacts: dict[str, Published] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    polls: list[PollRequest] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    challenges: set[str] = field(default_factory=set)
    spoil_data: Callable[[int, bytes], bytes] | None = None  # (file offset, bytes) → bytes that are sent instead
    trickle_s: float = 0.0  # pause before each byte of data
    lose_acknowledgements: bool = False
    refuse_rows_of: str = ""  # a request id whose batch is refused as malformed
    url: str = ""

    @property
    def join_token(self) -> str:
        """What a person would hand to a new node."""
        return f"secret-of-sixteen-plus.{self.director.pin}"

    def time(self) -> float:
        """The far side's clock."""
        return time.time() + self.clock_ahead_s

    def publish(self, digest: str, content: bytes, manifest: bytes, path: str) -> None:
        """Serve an artifact."""
        self.artifacts[digest] = Published(manifest, content, tree.leaf_table_bytes(path))

    def assign(self, bundle: AssignmentBundle, sequence: int) -> None:
        """Hand out this assignment from the next poll on."""
        self.bundle, self.sequence = bundle, sequence

    def stored(self) -> list[TelemetryBatch]:
        """The batches received, each (boot, seq) once; one that is sent again must be the same byte for byte."""
        once: dict[tuple[str, int], bytes] = {}
        for raw in self.batches:
            batch = TelemetryBatch.FromString(raw)
            assert once.setdefault((batch.boot_id, batch.seq), raw) == raw
        return [TelemetryBatch.FromString(raw) for raw in once.values()]

    def inference(self) -> list[InferenceRow]:
        """Inference rows received."""
        return [row for batch in self.stored() for row in batch.inference]

    def comparisons(self) -> list[ComparisonRow]:
        """Comparison rows received."""
        return [row for batch in self.stored() for row in batch.comparison]

    def gpu_samples(self) -> list[GpuSamples]:
        """Packed samples of GPUs received."""
        return [samples for batch in self.stored() for samples in batch.gpu]

    def engine_samples(self) -> list[EngineSamples]:
        """Packed samples of engines received."""
        return [samples for batch in self.stored() for samples in batch.engine]

    def refusals(self) -> set[str]:
        """Codes of everything that the agent told it refused."""
        return {refusal.code for poll in self.polls for refusal in poll.refusals}

    def conditions(self) -> dict[str, ConditionReport]:
        """The last reported conditions by type."""
        return {condition.type: condition for condition in self.polls[-1].conditions} if self.polls else {}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of ours: agents are killed all the time here."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(plane: Plane, port: int = 0) -> Iterator[Plane]:
    """Serve on loopback for the length of the block."""
    handler = type("Handler", (_Handler,), {"plane": plane})
    server = _Server(("127.0.0.1", port), handler)
    plane.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield plane
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    plane: Plane
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """The tests read `seen` instead."""

    def do_GET(self) -> None:
        self._handle(b"")

    def do_POST(self) -> None:
        self._handle(self.rfile.read(int(self.headers["content-length"])))

    def _send(self, status: int, raw: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(raw)))
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        self.wfile.write(raw)

    def _json(self, value: dict[str, Any], status: int = 200) -> None:
        self._send(status, json.dumps(value).encode())

    def _problem(self, status: int, code: str, **extra: Any) -> None:
        self._json({"title": code, "status": status, "detail": f"Sentence of {code}.", "code": code, **extra}, status)

    def _handle(self, body: bytes) -> None:
        plane = self.plane
        plane.seen.append(self.path)
        if self.path == "/agent/v1/enrol":
            return self._enrol(json.loads(body))
        fields, signature = parse_headers(self.headers)  # type: ignore[arg-type]
        if not verify(plane.public_key, signature, canonical(self.command, self.path, body, fields)):
            return self._problem(401, "bad_signature")
        if abs(float(fields.time) - plane.time()) > MAX_SKEW_S and fields.challenge not in plane.challenges:
            plane.challenges.add("prove-it")
            return self._problem(401, "clock_skew", server_time=plane.time(), challenge="prove-it")
        if plane.refuse:
            return self._problem(plane.refuse[0], **plane.refuse[1])
        if self.path == "/agent/v1/renew":
            plane.generation = fields.generation + 1
            return self._json({"generation": plane.generation, "expires": plane.expires, "server_time": plane.time()})
        if self.path == "/agent/v1/poll":
            return self._poll(PollRequest.model_validate_json(body))
        if self.path == "/agent/v1/telemetry":
            return self._telemetry(body)
        if self.path.startswith("/agent/v1/wait"):
            return self._wait(int(self.path.partition("after=")[2]))
        if self.path.startswith("/agent/v1/root"):
            after = int(self.path.partition("after=")[2])
            return self._json({"trust_root": [base64.b64encode(raw).decode() for raw in plane.director.roots[after:]]})
        found = re.fullmatch(r"/agent/v1/artifacts/([0-9a-f]{128})/(manifest|leaves|data)", self.path)
        if found is None or found[1] not in plane.artifacts:
            return self._problem(404, "not_assigned")
        return self._artifact(plane.artifacts[found[1]], found[2])

    def _enrol(self, asked: dict[str, Any]) -> None:
        plane = self.plane
        key = base64.b64decode(asked["public_key"])
        text = canonical_enrol(asked["token"], asked["public_key"], asked["name"], asked["hostname"], asked["zone"])
        if not verify(key, base64.b64decode(asked["signature"]), text):
            return self._problem(401, "bad_signature")
        plane.public_key = key
        granted = {"node": plane.node, "phase": "accepted", "generation": 1, "expires": plane.expires}
        chain = [base64.b64encode(raw).decode() for raw in plane.director.roots]
        return self._json({**granted, "trust_root": chain, "server_time": plane.time()})

    def _poll(self, report: PollRequest) -> None:
        plane = self.plane
        plane.polls.append(report)
        answer: dict[str, Any] = {
            "server_time": plane.time(),
            "interval_s": plane.interval_s,
            "jitter_s": 0.0,
            "phase": "active",
            "root_version": len(plane.director.roots),
        }
        if plane.bundle is not None and report.observed_sequence != plane.sequence:
            answer["assignment"] = plane.bundle.model_dump()
        self._json(answer)

    def _wait(self, after: int) -> None:
        deadline = time.monotonic() + 2.0
        while self.plane.sequence <= after and time.monotonic() < deadline:
            time.sleep(0.02)
        self._json({"sequence": self.plane.sequence, "issued": None})

    def _telemetry(self, body: bytes) -> None:
        plane = self.plane
        batch = TelemetryBatch.FromString(body)
        if any(row.request_id == plane.refuse_rows_of for row in batch.inference):
            return self._problem(400, "bad_batch")
        plane.batches.append(body)
        if plane.lose_acknowledgements:
            self.close_connection = True
            return None
        return self._json({"boot_id": batch.boot_id, "seq": batch.seq})

    def _artifact(self, artifact: Published, part: str) -> None:
        if part == "manifest":
            return self._send(200, artifact.manifest)
        if part == "leaves":
            return self._send(200, artifact.leaves)
        start, _, last = self.headers["range"].removeprefix("bytes=").partition("-")
        content = artifact.content[int(start) : int(last) + 1]
        if int(start) >= len(artifact.content):
            return self._problem(416, "range_not_satisfiable")
        if self.plane.spoil_data:
            content = self.plane.spoil_data(int(start), content)
        if not self.plane.trickle_s:
            return self._send(206, content)
        self.send_response(206)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        try:
            for at in range(len(content)):
                time.sleep(self.plane.trickle_s)
                self.wfile.write(content[at : at + 1])
                self.wfile.flush()
        except ConnectionError:
            self.close_connection = True  # the agent gave up, as it should
        return None
