"""From desired rows to a signed statement that a node accepts, and sequences that only rise on change."""

from __future__ import annotations

from datetime import timedelta

import pytest

from aifb import signing
from aifb.trust import Accepted, accepted, make_bundle, verify_statement
from apps.access.actors import SYSTEM
from apps.audit.models import Event
from apps.fleet import assignments, selectors, services
from apps.fleet.models import Assignment, DesiredDeployment, Node
from apps.lib.errors import Conflict, DomainError
from apps.models import services as registry
from apps.models.models import RegisteredModel
from protocol.messages import Role
from tests.artifacts import root_envelope
from tests.fleet import builders


def desire(world, node, *shares):
    """Desire (artifact, role, weight) triples on a node."""
    specs = [services.DesiredSpec(artifact, role, weight) for artifact, role, weight in shares]
    return services.set_desired(node=node, model=world.model, specs=specs)


def stored(node):
    return Assignment.objects.get(pk=node.pk)


def opened(node, root, now, last=None):
    row = stored(node)
    bundle = make_bundle(bytes(row.statement), row.index, [bytes(p) for p in row.path], bytes(row.envelope))
    return verify_statement(bundle, root=root, node_id=str(node.pk), now=now, last=last)


@pytest.fixture
def node(world, now):
    return builders.enrol(world, "node-1", now)[0]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_node_of_a_tick_can_verify_its_statement(world, trust_root, now, count):
    nodes = [builders.enrol(world, f"node-{n}", now)[0] for n in range(count)]
    artifact = world.artifact(1)
    for each in nodes:
        desire(world, each, (artifact, Role.BASELINE, 100))
    assert assignments.compile_assignments(now).signed == count
    for each in nodes:
        statement = opened(each, trust_root, now)
        assert (statement.sequence, statement.director_epoch) == (1, 1)
        assert [d.digest for d in statement.deployments] == [artifact.digest]
        assert stored(each).digests == [artifact.digest]
        assert bytes(stored(each).content_sha256).hex() == statement.content
        assert (stored(each).issued, stored(each).expires) == (statement.issued, statement.expires)
    assert len({bytes(stored(each).envelope) for each in nodes}) == 1


def test_an_accepted_node_gets_an_empty_assignment_first(node, trust_root, now):
    assignments.compile_assignments(now)
    assert opened(node, trust_root, now).deployments == ()


def test_nothing_due_signs_nothing(node, now):
    assert assignments.compile_assignments(now).signed == 1
    assert assignments.compile_assignments(now + timedelta(minutes=1)) == assignments.Compiled(0, 0, 0)


def test_a_renewal_keeps_the_sequence_and_is_accepted(node, trust_root, now):
    assignments.compile_assignments(now)
    last = accepted(opened(node, trust_root, now), None)
    later = now + timedelta(hours=12, seconds=1)
    assert assignments.compile_assignments(later).signed == 1
    renewed = opened(node, trust_root, later, last)
    assert (renewed.sequence, renewed.issued) == (1, later)


def test_a_renewal_is_later_even_when_the_clock_was_set_back(node, trust_root, now, world):
    assignments.compile_assignments(now)
    last = accepted(opened(node, trust_root, now), None)
    Node.objects.update(desired_generation=7)  # content as before, so this only renews
    assignments.compile_assignments(now - timedelta(minutes=5))
    assert opened(node, trust_root, now, last).issued > last.issued


def test_a_change_raises_the_sequence_by_one(world, node, trust_root, now):
    v1, v2 = world.artifact(1), world.artifact(2)
    desire(world, node, (v1, Role.BASELINE, 100))
    assignments.compile_assignments(now)
    last = accepted(opened(node, trust_root, now), None)
    desire(world, node, (v1, Role.BASELINE, 90), (v2, Role.CANDIDATE, 10))
    assignments.compile_assignments(now + timedelta(seconds=5))
    statement = opened(node, trust_root, now + timedelta(seconds=5), last)
    assert statement.sequence == 2
    assert {(d.version, d.role, d.weight) for d in statement.deployments} == {
        (1, "baseline", 90),
        (2, "candidate", 10),
    }


def test_a_deployment_keeps_its_id_when_its_role_changes(world, node):
    v1, v2 = world.artifact(1), world.artifact(2)
    desire(world, node, (v1, Role.BASELINE, 90), (v2, Role.CANDIDATE, 10))
    before = {row.artifact_id: row.pk for row in node.desired.all()}
    desire(world, node, (v2, Role.BASELINE, 100))
    (row,) = DesiredDeployment.objects.filter(node=node)
    assert (row.pk, row.role) == (before[v2.pk], "baseline")
    desire(world, node, (v1, Role.CANDIDATE, 0), (v2, Role.BASELINE, 100))
    desire(world, node, (v1, Role.BASELINE, 100), (v2, Role.CANDIDATE, 0))
    assert DesiredDeployment.objects.get(node=node, artifact=v2).pk == before[v2.pk]


def test_setting_what_is_set_changes_nothing(world, node):
    v1 = world.artifact(1)
    assert desire(world, node, (v1, Role.BASELINE, 100)) is True
    generation = Node.objects.get(pk=node.pk).desired_generation
    assert desire(world, node, (v1, Role.BASELINE, 100)) is False
    assert Node.objects.get(pk=node.pk).desired_generation == generation


def test_a_restored_database_goes_beyond_what_the_node_has_seen(node, trust_root, now):
    assignments.compile_assignments(now)
    Node.objects.update(observed_epoch=1, observed_sequence=41)
    assert assignments.compile_assignments(now + timedelta(seconds=5)).signed == 1
    last = Accepted(1, 41, "a" * 64, now)
    assert opened(node, trust_root, now + timedelta(seconds=5), last).sequence == 42


def test_a_sequence_that_cannot_be_honest_is_not_followed(world, node, now):
    assignments.compile_assignments(now)
    Node.objects.update(observed_epoch=1, observed_sequence=2 + (1 << 32))
    desire(world, node, (world.artifact(1), Role.BASELINE, 100))
    assert assignments.compile_assignments(now) == assignments.Compiled(0, 0, 1)
    assert stored(node).sequence == 1


def test_a_rotated_director_starts_a_new_count(world, node, now, settings, keys, home):
    assignments.compile_assignments(now)
    Node.objects.update(observed_epoch=1, observed_sequence=5 << 32)
    director = signing.generate_key()
    envelope = root_envelope(keys.root, keys.release, director, version=2, director_epoch=2)
    new_root = registry.add_root(envelope=envelope, actor=SYSTEM, now=now)
    with pytest.raises(Conflict, match="does not list"):
        assignments.compile_assignments(now)
    key = builders.write_key(home / "director-2.pem", director)
    settings.FARRIER = settings.FARRIER.model_copy(update={"director_key": key})
    assert assignments.compile_assignments(now).signed == 1
    last = Accepted(1, 5 << 32, "a" * 64, now - timedelta(minutes=1))
    assert opened(node, new_root, now, last).sequence == 1


def test_a_draining_node_gets_an_empty_assignment_and_its_work_back(world, node, trust_root, now):
    desire(world, node, (world.artifact(1), Role.BASELINE, 100))
    builders.activate(node, now)
    assignments.compile_assignments(now)
    services.drain_node(node, actor=world.actor, reason="A fan is replaced.", now=now)
    assignments.compile_assignments(now)
    assert opened(node, trust_root, now).deployments == ()
    services.uncordon_node(node, actor=world.actor, reason="The fan turns.", now=now)
    assignments.compile_assignments(now)
    assert len(opened(node, trust_root, now).deployments) == 1


def test_locked_nodes_get_no_assignment(world, node, now):
    services.quarantine_node(node, actor=world.actor, reason="It misbehaves.", now=now)
    assert assignments.compile_assignments(now).signed == 0


def test_state_of_sync(world, node, trust_root, now):
    v1 = world.artifact(1)
    desire(world, node, (v1, Role.BASELINE, 100))

    def seen():
        return selectors.nodes(world.operator).get(pk=node.pk)

    assert not selectors.in_sync(seen())
    assignments.compile_assignments(now)
    assert not selectors.in_sync(seen())
    (deployment,) = seen().desired.all()
    report = {"digest": v1.digest, "state": "running", "since": now, "reported_at": now, "weight_in_force": 100}
    node.reported.create(deployment_id=deployment.pk, **report)
    Node.objects.update(observed_epoch=1, observed_sequence=1)
    assert selectors.in_sync(seen())
    assert selectors.in_sync_for(seen(), world.model.pk)
    node.reported.update(digest="0" * 128)
    assert not selectors.in_sync(seen())
    assert selectors.deployment_status(seen(), deployment).state == "assigned"


@pytest.mark.parametrize(
    ("shares", "code"),
    [
        (lambda a, b: [(a, Role.BASELINE, 99)], "bad_weights"),
        (lambda a, b: [(a, Role.BASELINE, 50), (b, Role.BASELINE, 50)], "duplicate_role"),
        (lambda a, b: [(a, Role.BASELINE, 50), (a, Role.CANDIDATE, 50)], "duplicate_artifact"),
    ],
)
def test_plans_that_no_node_could_follow_are_refused(world, node, shares, code):
    with pytest.raises(DomainError) as caught:
        desire(world, node, *shares(world.artifact(1), world.artifact(2)))
    assert caught.value.code == code


def test_other_teams_models_are_refused(world, node, other_team):
    specs = [services.DesiredSpec(world.artifact(1), Role.BASELINE, 100)]
    other = RegisteredModel.objects.create(team=other_team, slug="other-model")
    with pytest.raises(DomainError) as caught:
        services.set_desired(node=node, model=other, specs=specs)
    assert caught.value.code == "wrong_model"
    RegisteredModel.objects.filter(pk=world.model.pk).update(team=other_team)
    with pytest.raises(DomainError) as caught:
        services.set_desired(node=node, model=world.model, specs=specs)
    assert caught.value.code == "wrong_team"


def test_the_list_of_nodes_costs_the_same_however_long_it_is(world, now, django_assert_num_queries):
    v1 = world.artifact(1)
    for n in range(6):
        each = builders.enrol(world, f"node-{n}", now)[0]
        desire(world, each, (v1, Role.BASELINE, 100))
    assignments.compile_assignments(now)
    with django_assert_num_queries(6):
        rows = list(selectors.nodes(world.operator))
        assert [selectors.in_sync(row) for row in rows] == [False] * 6
        assert not any(selectors.overdue(row, now) for row in rows)
    assert not Event.objects.filter(verb="node.sequence_refused").exists()
