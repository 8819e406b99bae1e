"""A whole node, with nothing replaced but the far side: real agent, fork server, engines, Envoy, comparator.

One node serves all tests of this file; each assigns what it needs and waits until that is in force.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2
import numpy as np
import pytest

from aifb.trust import Deployment
from protocol.metrics import ENGINE
from protocol.telemetry_pb2 import ComparisonRow
from tests.agent.artifacts import MODEL, publish
from tests.agent.node import Load, Node, node_of, until
from tests.agent.plane import Plane, serving

USERS = [f"user-{number}" for number in range(120)]


@dataclass
class Setting:
    """The node, its far side, and three versions that it may be assigned."""

    node: Node
    plane: Plane
    v1: Deployment
    v2: Deployment
    v3: Deployment
    folder: Path

    def candidate(self, weight: int, mirror_percent: int = 0) -> tuple[Deployment, Deployment]:
        """v1 as baseline beside v2 as candidate."""
        made = replace(
            self.v2,
            id=self.v2.id[:-1] + "c",
            role="candidate",
            weight=weight,
            mirror_percent=mirror_percent,
            rollout="01890000-0000-7000-8000-00000000000a",
            stage=1,
            attempt=1,
        )
        return replace(self.v1, weight=100 - weight), made


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("node")
    with serving(Plane()) as plane, node_of(plane, folder) as node:
        versions = [publish(plane, folder, version, ballast_bytes=3 << 20) for version in (1, 2, 3)]
        node.start()
        made = Setting(node, plane, *versions, folder)
        node.settle(made.v1)
        yield made


def _by_user(node: Node) -> dict[str, str]:
    """Which version each user is sent to; asserts that it is the same each time."""
    with httpx2.Client(timeout=30.0, trust_env=False) as client:
        url = f"http://127.0.0.1:{node.port}/v2/models/{MODEL}/ready"
        seen = {
            user: {client.get(url, headers={"x-user-id": user}).headers["x-farrier-version"] for _ in range(3)}
            for user in USERS
        }
    assert {len(versions) for versions in seen.values()} == {1}
    return {user: versions.pop() for user, versions in seen.items()}


def test_an_answer_says_what_answered_and_where(setting: Setting) -> None:
    setting.node.settle(setting.v1)
    answer = setting.node.infer()
    assert answer.status_code == 200
    assert answer.headers["x-farrier-digest"] == setting.v1.digest
    assert answer.headers["x-farrier-node"] == "node-1"
    request_id = answer.headers["x-request-id"]
    assert answer.json()["id"] == request_id
    row = until(lambda: [r for r in setting.plane.inference() if r.request_id == request_id], "its row arrives")
    assert (row[0].model, row[0].version, row[0].status) == (MODEL, 1, 200)


def test_engines_are_sampled_every_second(setting: Setting) -> None:
    setting.node.settle(setting.v1)
    setting.node.infer()

    def last() -> dict[str, float]:
        for samples in reversed(setting.plane.engine_samples()):
            if setting.v1.id in samples.deployments:
                which = np.frombuffer(samples.deployment, "u1") == list(samples.deployments).index(setting.v1.id)
                return {c.name: float(np.frombuffer(c.values, "<f4")[which][-1]) for c in samples.columns}
        return {}

    until(lambda: last().get("requests_total", 0) >= 1, "the request is counted")
    found = last()
    assert set(found) == {metric.name for metric in ENGINE}
    assert found["resident_bytes"] > 10e6
    assert 0 <= found["loop_age_s"] < 30
    assert found["queue_depth"] >= 0


def test_the_node_reports_itself_in_order(setting: Setting) -> None:
    setting.node.settle(setting.v1)
    conditions = until(
        lambda: {kind: c.status for kind, c in setting.plane.conditions().items()}, "conditions are reported"
    )
    wanted = {"DiskSpace", "OpenFiles", "ControlPlaneReachable", "ZygoteReady", "GatewayReady", "EnginesSandboxed"}
    assert {kind for kind in wanted if conditions.get(kind) == "true"} == wanted
    report = setting.node.reports()[setting.v1.id]
    assert report.warmup_ms is not None
    assert report.digest == setting.v1.digest
    sequences = [poll.report_seq for poll in setting.plane.polls if poll.boot_id == setting.plane.polls[-1].boot_id]
    assert sequences == sorted(set(sequences))


def test_a_model_that_nobody_serves_is_refused_with_a_sentence(setting: Setting) -> None:
    base = f"http://127.0.0.1:{setting.node.port}"
    answer = httpx2.post(f"{base}/v2/models/unheard-of/infer", json={}, trust_env=False)
    assert answer.status_code == 503
    assert answer.json()["code"] == "model_not_served"
    by_header = httpx2.get(f"{base}/v2/models/{MODEL}", headers={"x-model-id": MODEL}, trust_env=False)
    assert by_header.status_code == 200
    assert httpx2.get(f"{base}/v2/health/ready", trust_env=False).status_code == 200


def test_weights_are_kept_and_users_stay_where_they_are(setting: Setting) -> None:
    setting.node.settle(*setting.candidate(10))
    seen = setting.node.versions(400)
    assert 15 <= seen["2"] <= 75  # 40 expected, more than four deviations to each side
    at_10 = {user for user, version in _by_user(setting.node).items() if version == "2"}
    assert at_10
    setting.node.settle(*setting.candidate(50))
    at_50 = {user for user, version in _by_user(setting.node).items() if version == "2"}
    assert at_10 < at_50  # a growing share keeps the users that it had
    assert 30 <= len(at_50) <= 90


def test_mirrored_requests_are_replayed_through_both(setting: Setting) -> None:
    setting.node.settle(*setting.candidate(0, mirror_percent=100))

    def ask() -> list[ComparisonRow]:
        assert setting.node.versions(5) == {"1": 5}  # clients see the baseline only
        return setting.plane.comparisons()

    rows = until(ask, "comparisons arrive")
    assert {(row.model, row.baseline_version, row.candidate_version) for row in rows} == {(MODEL, 1, 2)}
    assert {(row.rollout, row.stage, row.attempt) for row in rows} == {("01890000-0000-7000-8000-00000000000a", 1, 1)}
    assert {(row.baseline_status, row.candidate_status) for row in rows} == {(200, 200)}
    assert all(0 <= row.similarity < 0.99 for row in rows)  # other weights answer otherwise


def test_versions_change_under_load_without_a_lost_request(setting: Setting) -> None:
    node, plane = setting.node, setting.plane
    node.settle(setting.v1)
    with Load(node) as load:
        node.settle(*setting.candidate(50))
        node.settle(setting.v2)  # promoted
        node.settle(setting.v3)  # replaced by one that must be fetched first
        asked = sum(path.endswith("/data") for path in plane.seen)
        node.settle(setting.v2)  # rolled back
        assert sum(path.endswith("/data") for path in plane.seen) == asked  # without a download
        until(lambda: set(node.pids()) >= {"engine-2"} and "engine-3" not in node.pids(), "v3's engine is gone")
    assert set(load.statuses) == {200}
    assert set(load.versions) == {"1", "2", "3"}
    assert node.versions(20) == {"2": 20}


@pytest.mark.crash
def test_a_killed_engine_comes_back_and_no_request_is_lost(setting: Setting) -> None:
    node = setting.node
    node.settle(setting.v1)
    before = node.engine_pid(1)
    assert before is not None
    with Load(node) as load:
        os.kill(before, signal.SIGKILL)
        after = until(lambda: (pid := node.engine_pid(1)) != before and pid, "the engine is started again")
        until(lambda: node.is_running(setting.v1.id, 100), "it is told")
        answered = sum(load.statuses.values())
        until(lambda: sum(load.statuses.values()) > answered + 20, "it answers")
    assert after != before
    assert set(load.statuses) == {200}


@pytest.mark.crash
def test_a_killed_candidate_costs_no_request_while_its_successor_is_late(setting: Setting) -> None:
    node = setting.node
    v1, v2 = setting.candidate(50)
    node.settle(v1, v2)
    pids = node.pids()
    with Load(node) as load:
        os.kill(pids["zygote"], signal.SIGSTOP)
        try:
            os.kill(pids["engine-2"], signal.SIGKILL)
            until(lambda: node.is_running(v1.id, 100), "the old version takes over")
        finally:
            os.kill(pids["zygote"], signal.SIGCONT)
        until(lambda: node.is_running(v2.id, 50), "another engine has its share")
    assert set(load.statuses) == {200}


@pytest.mark.crash
def test_a_killed_agent_is_missed_by_nobody_and_adopts_what_runs(setting: Setting) -> None:
    node = setting.node
    node.settle(*setting.candidate(50, mirror_percent=10))
    until(lambda: {"gateway", "zygote", "comparator", "engine-1", "engine-2"} <= set(node.pids()), "all run")
    before = node.pids()
    with Load(node) as load:
        node.kill_agent()
        answered = sum(load.statuses.values())
        until(lambda: sum(load.statuses.values()) > answered + 100, "requests are answered without an agent")
        polls = len(setting.plane.polls)
        node.start()
        until(lambda: len(setting.plane.polls) > polls + 2, "the new agent reports")
        node.settle(*setting.candidate(40, mirror_percent=10))
    assert set(load.statuses) == {200}
    after = node.pids()
    assert before.pop("agent") != after.pop("agent")
    assert after == before
    until(lambda: load.ids <= {row.request_id for row in setting.plane.inference()}, "every row arrives")
    ids = [row.request_id for row in setting.plane.inference() if row.request_id in load.ids]
    assert len(ids) == len(set(ids))  # and once


@pytest.mark.crash
def test_a_killed_gateway_and_fork_server_come_back(setting: Setting) -> None:
    node = setting.node
    node.settle(setting.v1)
    before = node.pids()
    killed = ("gateway", "zygote")
    for name in killed:
        os.kill(before[name], signal.SIGKILL)
    until(lambda: all(node.pids().get(name, before[name]) != before[name] for name in killed), "both are started again")
    until(node.is_up, "the gateway takes connections again")
    assert node.engine_pid(1) == before["engine-1"]  # the engine never noticed
    assert node.versions(10) == {"1": 10}


def test_what_is_refused_is_told_and_the_old_version_serves_on(setting: Setting) -> None:
    node, plane = setting.node, setting.plane
    node.settle(setting.v1)
    first = plane.sequence
    v4 = publish(plane, setting.folder, 4, ballast_bytes=3 << 20)
    plane.spoil_data = lambda offset, content: content[:-1] + bytes([content[-1] ^ 1])
    plane.assign(plane.director.bundle(first + 1, [v4], node=plane.node), first + 1)
    until(lambda: "chunk_mismatch" in plane.refusals(), "the flipped bit is told")
    until(lambda: (r := node.reports().get(v4.id)) and r.state == "failed" and r.reason_code == "chunk_mismatch", "so")
    assert node.versions(10) == {"1": 10}
    plane.spoil_data = None
    plane.assign(plane.director.bundle(first, [setting.v2], node=plane.node), first)
    until(lambda: "sequence_too_low" in plane.refusals(), "the older assignment is told")
    plane.assign(plane.director.bundle(first + 2, [setting.v2], node=plane.node, signer="stranger"), first + 2)
    until(lambda: "unknown_key" in plane.refusals(), "the foreign key is told")
    until(lambda: plane.polls[-1].observed_sequence == first + 1, "the good one is in force")
    node.settle(v4, sequence=first + 4)  # the same, sound this time
    assert node.versions(10) == {"4": 10}


def test_a_version_that_does_not_start_leaves_the_old_one_serving(setting: Setting) -> None:
    node, plane = setting.node, setting.plane
    node.settle(setting.v1)
    broken = publish(plane, setting.folder, 5, columns=20)
    plane.assign(plane.director.bundle(plane.sequence + 1, [broken], node=plane.node), plane.sequence + 1)
    report = until(
        lambda: (found := node.reports().get(broken.id)) and found.state == "failed" and found, "its failure is told"
    )
    assert report.reason_code
    assert report.reason
    assert node.versions(10) == {"1": 10}
    node.settle(setting.v1)
