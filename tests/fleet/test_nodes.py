"""A node's phases: the whole state × state matrix, who may move it, and that a person must say why."""

from __future__ import annotations

import itertools

import pytest

from apps.access.actors import SYSTEM, Actor
from apps.audit.transitions import IllegalMove, Stale, move
from apps.fleet import services
from apps.fleet.models import Node, NodePhase
from apps.lib.errors import DomainError
from tests.fleet import builders

VERBS = {
    services.accept_node: NodePhase.ACCEPTED,
    services.reject_node: NodePhase.REJECTED,
    services.cordon_node: NodePhase.CORDONED,
    services.uncordon_node: NodePhase.ACTIVE,
    services.drain_node: NodePhase.DRAINING,
    services.quarantine_node: NodePhase.QUARANTINED,
    services.ban_node: NodePhase.BANNED,
}


@pytest.fixture
def node(world, now):
    return builders.enrol(world, "node-1", now)[0]


def put(node, phase):
    Node.objects.filter(pk=node.pk).update(phase=phase)
    node.refresh_from_db()


def test_matrix(node, now):
    for source, to in itertools.product(NodePhase, NodePhase):
        put(node, source)
        if to in Node.TRANSITIONS[source]:
            move(node, to, actor=SYSTEM, reason="test", now=now)
            assert Node.objects.get(pk=node.pk).phase == to
        else:
            with pytest.raises(IllegalMove):
                move(node, to, actor=SYSTEM, reason="test", now=now)
            assert Node.objects.get(pk=node.pk).phase == source


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_from_every_phase(node, world, now, verb):
    admin = Actor.person(world.admin)
    for source in NodePhase:
        put(node, source)
        generation = node.desired_generation
        if VERBS[verb] in Node.TRANSITIONS[source]:
            verb(node, actor=admin, reason="Because.", now=now, expected_revision=node.revision)
            assert node.phase == VERBS[verb]
            assert node.desired_generation == generation + 1
        else:
            with pytest.raises(IllegalMove):
                verb(node, actor=admin, reason="Because.", now=now)


def test_a_person_must_say_why(node, world, now):
    with pytest.raises(DomainError) as caught:
        services.quarantine_node(node, actor=world.actor, reason="  ", now=now)
    assert caught.value.code == "reason_missing"


def test_a_stale_command_changes_nothing(node, world, now):
    with pytest.raises(Stale):
        services.quarantine_node(node, actor=world.actor, reason="Hot.", now=now, expected_revision=node.revision - 1)
    assert Node.objects.get(pk=node.pk).phase == node.phase


def test_roles(node, world, now, outsider):
    stranger = Actor.person(outsider)
    with pytest.raises(DomainError) as caught:
        services.quarantine_node(node, actor=stranger, reason="Mine!", now=now)
    assert caught.value.code == "role_missing"
    with pytest.raises(DomainError) as caught:
        services.ban_node(node, actor=world.actor, reason="An operator may not.", now=now)
    assert caught.value.code == "role_missing"
