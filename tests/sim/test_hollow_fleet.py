"""Fifty hollow agents against the real web app: they join, follow their assignments, report and send telemetry."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from apps.fleet import assignments, selectors, services
from apps.fleet.models import Node, NodePhase, Refusal
from apps.observability import timeseries
from protocol.messages import Role
from tests.fleet.builders import World
from tests.observability.batches import inference
from tests.sim.hollow import HollowAgent, Network, at_once, persist, refusal_of

pytestmark = pytest.mark.django_db(transaction=True)  # requests come and go on connections of their own
FLEET = 50


def utc_now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def agent_of(world: World, tmp_path: Path) -> Callable[..., HollowAgent]:
    """Join an agent by name; keywords go to HollowAgent."""

    def make(name: str, **changes: object) -> HollowAgent:
        agent = HollowAgent(name, tmp_path / name, **changes)  # type: ignore[arg-type]
        token = services.create_join_token(pool=world.pool, actor=world.actor, now=utc_now())
        persist(lambda: agent.join(token))
        return agent

    return make


def serve(world: World, names: list[str], seed: int = 1) -> None:
    """Have nodes serve one version alone."""
    artifact = world.artifact(seed)
    for node in Node.objects.filter(name__in=names):
        specs = [services.DesiredSpec(artifact, Role.BASELINE, 100)]
        services.set_desired(node=node, model=world.model, specs=specs, ring=False)
    assignments.compile_assignments(utc_now())


def test_fifty_agents_at_once_over_a_bad_network(world, agent_of):
    """Every tenth answer is lost and every tenth request comes twice; in the end all run v1 and nothing is missing."""
    names = [f"node-{number:02}" for number in range(FLEET)]
    agents = [agent_of(name, network=Network(lose=0.1, repeat=0.1, seed=n)) for n, name in enumerate(names)]
    assert Node.objects.filter(phase=NodePhase.ACCEPTED).count() == FLEET
    serve(world, names)
    for _ in range(2):  # the second poll reports what the first one fetched
        at_once(agents, lambda agent: persist(agent.poll))
    nodes = list(selectors.nodes(world.operator))
    assert len(nodes) == FLEET
    assert all(selectors.in_sync(node) for node in nodes)
    assert {node.phase for node in nodes} == {NodePhase.ACTIVE}

    def send_three(agent: HollowAgent) -> None:
        for part in range(3):
            batch = agent.ship(*(inference(f"{agent.name}-{part}-{n}") for n in range(5)))
            persist(partial(agent.plane.telemetry, batch.SerializeToString()))

    at_once(agents, send_three)
    ids = [node.pk for node in nodes]
    rows = timeseries.evidence_requests("digits", [1], ids, utc_now() - timedelta(hours=1), utc_now())
    expected = [f"{name}-{part}-{n}" for name in names for part in range(3) for n in range(5)]
    assert sorted(row.request_id for row in rows) == sorted(expected)
    assert {str(row.node_id) for row in rows if row.request_id.startswith("node-07")} == {agents[7].identity.node}


def test_a_clock_that_is_an_hour_off(world, agent_of):
    agents = [agent_of("node-1", skew_s=3_600.0), agent_of("node-2", skew_s=-3_600.0)]
    serve(world, ["node-1", "node-2"])
    for agent in agents:
        agent.poll()
        agent.poll()
        assert abs(agent.plane.clock_offset_s + agent.skew_s) < 60
        assert agent.deployments[0].model == "digits"
        now_us = round(agent.clock_s() * 1e6)
        agent.plane.telemetry(agent.ship(inference(agent.name, time_unix_us=now_us)).SerializeToString())
    ids = [UUID(agent.identity.node) for agent in agents]
    lately = utc_now() - timedelta(minutes=1)
    found = timeseries.evidence_requests("digits", [1], ids, lately, utc_now() + timedelta(minutes=1))
    assert {row.request_id for row in found} == {"node-1", "node-2"}


def test_a_changed_plan_reaches_every_node_with_one_signature(world, agent_of):
    agents = [agent_of(f"node-{n}") for n in range(5)]
    names = [agent.name for agent in agents]
    serve(world, names, seed=1)
    for agent in agents:
        agent.poll()
    serve(world, names, seed=2)
    for agent in agents:
        agent.poll()
        assert agent.trust is not None
        assert agent.trust.last is not None
        assert (agent.deployments[0].version, agent.trust.last.sequence) == (2, 2)
        assert agent.refusals == []


def test_a_node_reads_nothing_of_another(world, agent_of):
    one, other = agent_of("node-1"), agent_of("node-2")
    serve(world, ["node-1"])
    one.poll()
    digest = one.deployments[0].digest
    for call in (
        lambda: other.plane.manifest(digest),
        lambda: other.plane.leaves(digest),
        lambda: other.plane.data(digest, 0, 10, stall_s=5).__enter__(),
    ):
        assert refusal_of(call) == "not_assigned"
    foreign = one.ship(inference("x")).SerializeToString()
    assert refusal_of(lambda: other.plane.telemetry(foreign)) == "wrong_node"


def test_a_stolen_assignment_is_refused_by_the_node_and_the_refusal_is_on_its_page(world, agent_of):
    one, other = agent_of("node-1"), agent_of("node-2")
    serve(world, ["node-1", "node-2"])
    stolen = one.poll().assignment
    assert stolen is not None
    other.accept(stolen)
    other.poll()
    other.poll()
    refusal = Refusal.objects.get()
    assert (refusal.node.name, refusal.code) == ("node-2", "wrong_node")
    assert other.deployments[0].model == "digits"


def test_a_clone_with_the_key_is_locked_with_its_original(world, agent_of, tmp_path):
    original = agent_of("node-1")
    original.poll()
    clone = HollowAgent("node-1", tmp_path / "node-1")  # the same disk: key, identity, trust
    identity = clone.store.load()
    assert identity is not None
    clone.identity, clone.trust = identity, original.trust
    clone.plane.credential = identity.credential()
    original.renew()
    original.poll()
    assert refusal_of(clone.poll) == "generation_stale"
    assert refusal_of(clone.renew) == "clone_suspected"
    node = Node.objects.get(name="node-1")
    assert node.phase == NodePhase.QUARANTINED
    assert refusal_of(original.poll) == "node_quarantined"


def test_a_recorded_request_is_worthless(agent_of):
    agent = agent_of("node-1")
    agent.poll()
    recorded = agent.network.sent[-1]
    answer = Network().handle_request(recorded)
    answer.read()
    assert (answer.status_code, answer.json()["code"]) == (401, "nonce_replayed")


def test_after_a_restored_backup_the_fleet_goes_on(world, agent_of):
    agent = agent_of("node-1")
    serve(world, ["node-1"], seed=1)
    agent.poll()
    serve(world, ["node-1"], seed=2)
    agent.poll()
    agent.poll()
    row = Node.objects.get(name="node-1").assignment
    row.sequence, row.content_sha256 = 1, b"\0" * 32  # as the backup had it
    row.save()
    assignments.compile_assignments(utc_now())
    agent.poll()
    assert agent.refusals == []
    assert agent.trust is not None
    assert agent.trust.last is not None
    assert agent.trust.last.sequence == 3
