"""A small fleet on which rollouts run in simulated time: real services, real signatures, nodes that act like agents."""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from aifb.trust import Deployment, parse_statement
from apps.fleet import reports
from apps.fleet.assignments import compile_assignments
from apps.fleet.models import Node
from apps.models.models import Artifact, ModelVersion, RegisteredModel
from apps.observability.services import store_batch
from apps.rollouts import reconcile
from apps.rollouts.models import Rollout
from protocol.messages import ConditionReport, DeploymentReport, PollRequest
from protocol.telemetry_pb2 import ComparisonRow, InferenceRow, TelemetryBatch
from tests.fleet import builders

STEP_S = 2.0
REQUESTS_A_STEP = 60  # of each node


@dataclass
class Behaviour:
    """How a version behaves when it answers."""

    similarity: float = 0.9994  # to the baseline
    scatter: float = 0.0004
    latency_ms: float = 20.0
    error_rate: float = 0.0
    loads: bool = True  # False: every node fails to load it


@dataclass
class SimNode:
    """An agent as the control plane knows it: accepts its assignment, runs what it says, tells so."""

    id: UUID
    name: str
    boot_id: UUID = field(default_factory=uuid4)
    report_seq: int = 0
    batch_seq: int = 0
    offline: bool = False
    conditions: tuple[ConditionReport, ...] = ()
    accepted: tuple[int, int, datetime | None] = (0, 0, None)
    deployments: list[Deployment] = field(default_factory=list)
    loaded: set[str] = field(default_factory=set)  # digests that were running at the last poll

    def poll(self, now: datetime, behaviour: dict[str, Behaviour]) -> None:
        """Report what runs, accept what the answer assigns; a new artifact runs from the next poll on."""
        if self.offline:
            return
        self.report_seq += 1
        report = PollRequest(
            boot_id=self.boot_id,
            report_seq=self.report_seq,
            agent_version="1.0",
            observed_epoch=self.accepted[0],
            observed_sequence=self.accepted[1],
            observed_issued=self.accepted[2],
            deployments=[self._report(each, now, behaviour) for each in self.deployments],
            conditions=list(self.conditions),
        )
        answer = reports.record_poll(self.id, report, now=now)
        self.loaded = {each.digest for each in self.deployments if behaviour[each.digest].loads}
        if answer.assignment is not None:
            statement = parse_statement(base64.b64decode(answer.assignment.statement))
            self.accepted = (statement.director_epoch, statement.sequence, statement.issued)
            self.deployments = list(statement.deployments)

    def _report(self, each: Deployment, now: datetime, behaviour: dict[str, Behaviour]) -> DeploymentReport:
        runs = behaviour[each.digest].loads
        return DeploymentReport(
            id=UUID(each.id),
            digest=each.digest,
            state="running" if runs else "failed",
            reason_code="" if runs else "load_failed",
            reason="" if runs else "the graph names an op that this engine lacks",
            since=now,
            weight_in_force=each.weight if runs else 0,
        )


@dataclass
class Lab:
    """Time, nodes, versions. `behaviour` is by digest; what isn't set behaves well."""

    world: builders.World
    now: datetime
    nodes: list[SimNode]
    behaviour: dict[str, Behaviour] = field(default_factory=dict)
    seed: int = 1
    requests_a_step: int = REQUESTS_A_STEP

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    @property
    def model(self) -> RegisteredModel:
        return self.world.model

    def version(self, seed: int, **behaviour: Any) -> ModelVersion:
        """Publish the next version, with how it is to behave."""
        artifact: Artifact = self.world.artifact(seed)
        self.behaviour[artifact.digest] = Behaviour(**behaviour)
        return artifact.version

    def run(self, seconds: float, *, traffic: bool = True) -> None:
        """Let time pass: assignments are signed, nodes poll and serve, due rollouts are looked at."""
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.step(traffic=traffic)

    def step(self, *, traffic: bool = True) -> None:
        self.now += timedelta(seconds=STEP_S)
        compile_assignments(self.now)
        for node in self.nodes:
            node.poll(self.now, self.behaviour)
            if traffic and not node.offline:
                self.serve(node)
        reconcile.tick(self.now)

    def until(self, rollout: Rollout, *phases: str, within_s: float = 600.0, traffic: bool = True) -> Rollout:
        """Let time pass until the rollout is in one of `phases`; fails when it isn't within the time."""
        end = self.now + timedelta(seconds=within_s)
        rollout.refresh_from_db()
        while rollout.phase not in phases:
            assert self.now < end, f"{rollout} is {rollout.phase} ({rollout.pause_reason}) {rollout.decision}"
            self.step(traffic=traffic)
            rollout.refresh_from_db()
        return rollout

    def serve(self, node: SimNode) -> None:
        """Answer this step's requests on one node by the weights it has, and mirror its share of them."""
        running = [each for each in node.deployments if each.digest in node.loaded]
        if not running:
            return
        node.batch_seq += 1
        batch = TelemetryBatch(node=str(node.id), boot_id=str(node.boot_id), seq=node.batch_seq)
        candidate = next((each for each in running if each.role == "candidate"), None)
        weights = [each.weight for each in running]
        for _ in range(self.requests_a_step if sum(weights) else 0):
            answered = self.random.choices(running, weights)[0]
            batch.inference.append(self._request(answered))
            if candidate is not None and self.random.random() * 100 < candidate.mirror_percent:
                batch.comparison.append(self._pair(candidate))
        store_batch(Node.objects.get(pk=node.id), batch, now=self.now)

    def _request(self, each: Deployment) -> InferenceRow:
        behaviour = self.behaviour[each.digest]
        failed = self.random.random() < behaviour.error_rate
        latency_us = round(behaviour.latency_ms * 1_000 * self.random.uniform(0.8, 1.2))
        return InferenceRow(
            request_id=f"req-{self.random.getrandbits(64):x}",
            time_unix_us=round(self.now.timestamp() * 1e6),
            model=each.model,
            version=each.version,
            digest=bytes.fromhex(each.digest),
            deployment=each.id,
            status=500 if failed else 200,
            batch_size=self.random.choice((1, 1, 2)),
            total_us=latency_us,
            entropy=float("nan"),
            score=float("nan"),
        )

    def _pair(self, candidate: Deployment) -> ComparisonRow:
        behaviour = self.behaviour[candidate.digest]
        failed = self.random.random() < behaviour.error_rate
        similarity = min(1.0, max(0.0, self.random.gauss(behaviour.similarity, behaviour.scatter)))
        return ComparisonRow(
            request_id=f"req-{self.random.getrandbits(64):x}",
            time_unix_us=round(self.now.timestamp() * 1e6),
            model=candidate.model,
            rollout=candidate.rollout or "",
            stage=candidate.stage or 0,
            attempt=candidate.attempt or 0,
            deployment=candidate.id,
            baseline_version=1,
            candidate_version=candidate.version,
            similarity=float("nan") if failed else similarity,
            baseline_us=20_000,
            candidate_us=round(behaviour.latency_ms * 1_000),
            baseline_status=200,
            candidate_status=500 if failed else 200,
            batch_size=1,
            sample="Redistributions in binary form must reproduce the above copyright notice",
        )
