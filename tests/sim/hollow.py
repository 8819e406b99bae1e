"""A hollow fleet: the production client, identity and trust store, with nothing behind them that could serve.

Each agent enrols, polls, verifies its assignment, fetches and checks what is new, and reports it running. The network
is a transport that calls the web app in this process; what goes wrong on it is asked for by name.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import httpx2
from django.core.wsgi import get_wsgi_application

from aifb.errors import AifbError
from aifb.header import HEADER_BYTES
from aifb.tree import LeafTable
from aifb.trust import Deployment
from node.agent.client import ControlPlane
from node.agent.errors import AgentError
from node.agent.identity import Enrolment, IdentityStore, JoinToken, enrol, load_or_create_key, renew
from node.agent.trust import TrustStore
from protocol.messages import AssignmentBundle, DeploymentReport, DeploymentState, PollRequest, PollResponse, Refusal
from protocol.telemetry_pb2 import ComparisonRow, InferenceRow, TelemetryBatch

SERVER = "http://testserver"
T = TypeVar("T")
Handler = Callable[[httpx2.Request], httpx2.Response]


class Network(httpx2.BaseTransport):
    """The way to the web app. `lose` and `repeat` are chances a request; a lost answer was acted on all the same."""

    def __init__(self, *, lose: float = 0.0, repeat: float = 0.0, seed: int = 0) -> None:
        self._inner = httpx2.WSGITransport(app=get_wsgi_application(), raise_app_exceptions=True)
        self._chance = random.Random(seed)
        self.lose = lose
        self.repeat = repeat
        self.sent: list[httpx2.Request] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Deliver a request, perhaps twice, and perhaps lose the answer."""
        request.read()
        self.sent.append(request)
        if self._chance.random() < self.repeat:
            self._inner.handle_request(request).close()
        answer = self._inner.handle_request(request)
        if self._chance.random() < self.lose:
            answer.close()
            raise httpx2.ReadError("the answer was lost", request=request)
        return answer


@dataclass
class HollowAgent:
    """One node. `skew_s` is how far its clock is ahead."""

    name: str
    home: Path
    network: Network = field(default_factory=Network)
    skew_s: float = 0.0
    zone: str = "zone-a"

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self.key = load_or_create_key(self.home)
        self.plane = ControlPlane(SERVER, self.key, transport=self.network, now=self.clock_s)
        self.store = IdentityStore(self.home)
        self.boot_id = uuid4()
        self.report_seq = 0
        self.trust: TrustStore | None = None
        self.refusals: list[Refusal] = []
        self.files: dict[str, bytes] = {}
        self.telemetry_seq = 0

    def clock_s(self) -> float:
        """This node's clock, Unix seconds."""
        return time.time() + self.skew_s

    def join(self, token_text: str) -> None:
        """Enrol with what a person was handed; safe to call again after a lost answer."""
        token = JoinToken.parse(token_text)
        self.trust = TrustStore(self.home / "trust", token.root_sha256)
        self.identity = enrol(
            self.store,
            self.plane,
            self.key,
            Enrolment(token=token, name=self.name, zone=self.zone),
            accept_root=self.trust.accept_root_chain,
        )

    def renew(self) -> None:
        """Move on to the next credential generation."""
        self.identity = renew(self.store, self.plane, self.identity)

    def poll(self) -> PollResponse:
        """Report the present state and act on the answer: verify, fetch, check. Returns the answer."""
        assert self.trust is not None
        self.report_seq += 1
        last = self.trust.last
        report = PollRequest(
            boot_id=self.boot_id,
            report_seq=self.report_seq,
            agent_version="sim",
            observed_epoch=last.director_epoch if last else 0,
            observed_sequence=last.sequence if last else 0,
            observed_issued=last.issued if last else None,
            clock_offset_s=self.plane.clock_offset_s,
            deployments=[self._report(deployment) for deployment in self.deployments],
            refusals=self.refusals,
        )
        answer = self.plane.poll(report)
        self.refusals = []
        if answer.root_version > (self.trust.root.version if self.trust.root else 0):
            assert self.trust.root is not None
            self.trust.accept_successors(self.plane.root_envelopes(self.trust.root.version))
        if answer.assignment is not None:
            self.accept(answer.assignment)
        for deployment in self.deployments:
            if deployment.digest not in self.files:
                self.files[deployment.digest] = self.fetch(deployment)
        return answer

    @property
    def deployments(self) -> Sequence[Deployment]:
        """What the accepted assignment says."""
        assert self.trust is not None
        return self.trust.assignment.statement.deployments if self.trust.assignment else ()

    def ship(self, *rows: InferenceRow | ComparisonRow) -> TelemetryBatch:
        """Make the next batch of telemetry; sending it is the caller's."""
        self.telemetry_seq += 1
        batch = TelemetryBatch(
            node=self.identity.node,
            boot_id=str(self.boot_id),
            seq=self.telemetry_seq,
            clock_offset_s=self.plane.clock_offset_s,
        )
        for row in rows:
            (batch.inference if isinstance(row, InferenceRow) else batch.comparison).append(row)  # type: ignore[arg-type]
        return batch

    def accept(self, bundle: AssignmentBundle) -> None:
        """Put an assignment in force, or keep the reason against it for the next report."""
        assert self.trust is not None
        now = datetime.fromtimestamp(self.clock_s(), UTC)
        try:
            self.trust.accept_assignment(bundle, node_id=self.identity.node, now=now)
        except AifbError as bad:
            self.refusals.append(Refusal(code=bad.code, reason=bad.sentence, at=now))

    def fetch(self, deployment: Deployment) -> bytes:
        """Download an artifact and check manifest, leaf table and every chunk."""
        assert self.trust is not None
        manifest = self.trust.accept_manifest(self.plane.manifest(deployment.digest), deployment)
        raw = self.plane.leaves(deployment.digest)
        table = LeafTable.parse(
            raw[:HEADER_BYTES], raw[HEADER_BYTES:], bytes.fromhex(deployment.digest), manifest.length
        )
        content = bytearray(raw[:HEADER_BYTES])
        for index in range(table.count):
            offset, length = table.chunk_span(index)
            with self.plane.data(deployment.digest, offset, offset + length, stall_s=5) as parts:
                chunk = b"".join(parts)
            table.check(index, chunk)
            content += chunk
        return bytes(content)

    def _report(self, deployment: Deployment) -> DeploymentReport:
        here = deployment.digest in self.files
        return DeploymentReport(
            id=deployment.id,
            digest=deployment.digest,
            state=DeploymentState.RUNNING if here else DeploymentState.DOWNLOADING,
            since=datetime.now(UTC),
            warmup_ms=1.0 if here else None,
            weight_in_force=deployment.weight if here else 0,
        )


def refusal_of(call: Callable[[], object]) -> str:
    """Return the code with which the control plane refuses a call."""
    try:
        call()
    except AgentError as refused:
        return refused.code
    raise AssertionError("the control plane did not refuse")


def persist(call: Callable[[], T], tries: int = 50) -> T:
    """Repeat a call over a bad network as an agent's backoff does, without the waiting."""
    for _ in range(tries):
        try:
            return call()
        except AgentError as failed:
            last = failed
    raise AssertionError(f"no luck in {tries} tries: {last}")


def at_once(agents: Sequence[HollowAgent], act: Callable[[HollowAgent], Any], threads: int = 8) -> list[Any]:
    """Let all agents act, eight at a time; raises what any of them raised."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(act, agents))
