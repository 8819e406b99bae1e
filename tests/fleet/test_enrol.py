"""Joining: a single-use token, a key that proves itself, a pool's rule or a person."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest
from django.test import Client

from apps.access.actors import Actor
from apps.audit.models import Event
from apps.fleet import credentials, services
from apps.fleet.models import JoinToken, Node, NodePhase
from apps.lib.errors import DomainError
from apps.models.models import TrustRoot
from tests.fleet.builders import Host


def token_of(world, now, **changes):
    return services.create_join_token(pool=world.pool, actor=world.actor, now=now, **changes)


def refusal(call, *args, **kwargs):
    with pytest.raises(DomainError) as caught:
        call(*args, **kwargs)
    return caught.value.code


def test_token_pins_the_first_root_and_is_kept_hashed(world, now):
    token = token_of(world, now)
    secret, _, pin = token.partition(".")
    assert pin == hashlib.sha256(bytes(TrustRoot.objects.get(version=1).envelope)).hexdigest()
    row = JoinToken.objects.get()
    assert bytes(row.token_sha256) == hashlib.sha256(secret.encode()).digest()


def test_pool_rule_accepts_at_once(world, now):
    answer = credentials.enrol(Host("node-1").request(token_of(world, now)), now=now)
    node = Node.objects.get(pk=answer.node)
    assert (answer.phase, node.phase, answer.generation) == ("accepted", NodePhase.ACCEPTED, 1)
    assert len(answer.trust_root) == 1
    assert answer.expires > now
    verbs = Event.objects.filter(object_id=str(node.pk)).values_list("verb", flat=True)
    assert set(verbs) == {"node.enrolled", "node.accepted"}


def test_without_the_rule_a_person_decides(world, now):
    world.pool.auto_accept = False
    world.pool.save()
    answer = credentials.enrol(Host("node-1").request(token_of(world, now)), now=now)
    node = Node.objects.get(pk=answer.node)
    assert answer.phase == NodePhase.PENDING
    services.accept_node(node, actor=world.actor, reason="Its serial number is ours.", now=now)
    assert node.phase == NodePhase.ACCEPTED


def test_a_lost_answer_is_no_second_node(world, now):
    host, token = Host("node-1"), token_of(world, now)
    first = credentials.enrol(host.request(token), now=now)
    again = credentials.enrol(host.request(token), now=now + timedelta(hours=1))
    assert (again.node, again.generation) == (first.node, first.generation)
    assert Node.objects.count() == 1


def test_a_used_token_lets_nobody_else_in(world, now):
    token = token_of(world, now)
    credentials.enrol(Host("node-1").request(token), now=now)
    assert refusal(credentials.enrol, Host("node-2").request(token), now=now) == "token_used"


def test_a_cloned_key_is_refused(world, now):
    host = Host("node-1")
    credentials.enrol(host.request(token_of(world, now)), now=now)
    clone = Host("node-2", key=host.key)
    assert refusal(credentials.enrol, clone.request(token_of(world, now)), now=now) == "key_known"


def test_a_banned_key_cannot_come_back(world, now):
    host = Host("node-1")
    node = Node.objects.get(pk=credentials.enrol(host.request(token_of(world, now)), now=now).node)
    services.ban_node(node, actor=Actor.person(world.admin), reason="It was stolen.", now=now)
    again = Host("node-7", key=host.key)
    assert refusal(credentials.enrol, again.request(token_of(world, now)), now=now) == "key_known"


def test_a_taken_name_is_refused_and_the_token_stays_good(world, now):
    credentials.enrol(Host("node-1").request(token_of(world, now)), now=now)
    token = token_of(world, now)
    assert refusal(credentials.enrol, Host("node-1").request(token), now=now) == "name_taken"
    assert credentials.enrol(Host("node-2").request(token), now=now).phase == "accepted"


@pytest.mark.parametrize(
    ("bend", "code"),
    [
        ({"signature": "AAAA"}, "bad_signature"),
        ({"public_key": "AAAA"}, "bad_public_key"),
        ({"public_key": "not base64"}, "bad_public_key"),
        ({"protocol": 0}, "protocol_too_old"),
        ({"zone": "zone-b"}, "bad_signature"),
        ({"hardware": {"gpus": [{"uuid": ""}]}}, "bad_hardware"),
    ],
)
def test_bent_requests_change_nothing(world, now, bend, code):
    request = Host("node-1").request(token_of(world, now), **bend)
    assert refusal(credentials.enrol, request, now=now) == code
    assert not Node.objects.exists()
    assert not JoinToken.objects.filter(used_at__isnull=False).exists()


def test_tokens_expire_and_may_be_bound_to_a_name(world, now):
    bound = token_of(world, now, node_name="node-1")
    assert refusal(credentials.enrol, Host("node-2").request(bound), now=now) == "wrong_name"
    late = now + services.JOIN_TOKEN_LIFE
    assert refusal(credentials.enrol, Host("node-1").request(bound), now=late) == "token_expired"
    assert refusal(credentials.enrol, Host("node-1").request("x" * 43), now=now) == "token_unknown"


def test_a_stranger_may_not_make_tokens(world, now, outsider):
    stranger = Actor.person(outsider)
    assert refusal(services.create_join_token, pool=world.pool, actor=stranger, now=now) == "role_missing"


def test_a_gpu_cannot_be_taken_from_another_node(world, now):
    gpus = {"gpus": [{"uuid": "GPU-1", "index": 0, "name": "H200", "memory_bytes": 1 << 37}]}
    first = credentials.enrol(Host("node-1").request(token_of(world, now), hardware=gpus), now=now)
    credentials.enrol(Host("node-2").request(token_of(world, now), hardware=gpus), now=now)
    node = Node.objects.get(pk=first.node)
    assert [gpu.uuid for gpu in node.gpus.all()] == ["GPU-1"]


def test_over_http(world, now):
    message = Host("node-1").request(token_of(world, now)).model_dump_json()
    answer = Client().post("/agent/v1/enrol", message, content_type="application/json")
    assert answer.status_code == 200
    assert answer.json()["phase"] == "accepted"
    refused = Client().post("/agent/v1/enrol", b"{}", content_type="application/json")
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_message")
    assert Client().get("/agent/v1/enrol").status_code == 405
