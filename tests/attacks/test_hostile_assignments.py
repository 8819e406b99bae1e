"""Assignments that a node must not follow: replayed, reordered, expired, of others, or by a stolen key."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from aifb import signing, trust
from aifb.errors import AifbError
from aifb.trust import next_sequence
from tests.aifb.trust_samples import NODE, NODES, NOW, Tick, key, root, verify

HOUR = timedelta(hours=1)
CONTENT = verify(Tick().bundle()).content
LAST = trust.Accepted(1, 5, CONTENT, NOW)


@dataclass(frozen=True)
class Attack:
    """A bundle, what the node accepted before, its clock in hours after NOW, and the code it must answer with."""

    tick: Tick
    code: str
    last: trust.Accepted | None = LAST
    clock_h: float = 0
    node: str = NODE
    spoil: Callable[[dict[str, Any]], object] = lambda bundle: bundle


def renewed(hours: float, **changes: Any) -> Tick:
    """A tick signed some hours after NOW."""
    return Tick(issued=NOW + hours * HOUR, **changes)


def neighbours(bundle: dict[str, Any]) -> None:
    """Put a neighbour's statement of the same tick in this one's place."""
    bundle["statement"] = Tick().bundle(NODES[2])["statement"]


def statement_of(bundle: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> None:
    """Change a bundle's statement, which nobody signs anew."""
    parsed = json.loads(base64.b64decode(bundle["statement"]))
    change(parsed)
    bundle["statement"] = base64.b64encode(json.dumps(parsed).encode()).decode()


def flip(bundle: dict[str, Any], field: str) -> None:
    """Flip the first bit of a base64 field."""
    raw = bytearray(base64.b64decode(bundle[field]))
    raw[0] ^= 1
    bundle[field] = base64.b64encode(raw).decode()


ATTACKS = {
    # order
    "lower sequence": Attack(renewed(1, sequence=4), "sequence_too_low"),
    "lower sequence, renewed later": Attack(renewed(9, sequence=4), "sequence_too_low", clock_h=9),
    "equal sequence, other content": Attack(renewed(1, version=2), "content_changed"),
    "replayed": Attack(Tick(), "replayed"),
    "equal sequence, issued earlier": Attack(renewed(-1), "replayed"),
    "a jump of 2^32 and one": Attack(renewed(1, sequence=6 + (1 << 32)), "sequence_too_far"),
    "the last of all sequences": Attack(renewed(1, sequence=(1 << 63) - 1), "sequence_too_far"),
    "epoch above the root's": Attack(renewed(1, epoch=2), "wrong_epoch"),
    "epoch below the root's": Attack(renewed(1, epoch=0, sequence=900), "wrong_epoch"),
    "older epoch after a rotation": Attack(
        renewed(1, sequence=900), "sequence_too_low", last=trust.Accepted(2, 1, CONTENT, NOW)
    ),
    # time
    "expired by the node's clock": Attack(Tick(sequence=6), "expired", clock_h=24),
    "expired on a new node": Attack(Tick(), "expired", last=None, clock_h=24.5),
    "expired by what the node saw, its clock set back": Attack(
        Tick(sequence=6, issued=NOW - 30 * HOUR), "expired", clock_h=-30
    ),
    "valid for 24 h by the seen time, clock far behind": Attack(
        Tick(sequence=6, lifetime=HOUR, issued=NOW - HOUR), "expired", clock_h=-1000
    ),
    # addressee and place
    "of another node": Attack(Tick(), "wrong_node", last=None, node=NODES[4]),
    "a neighbour's statement": Attack(Tick(), "bad_path", last=None, spoil=neighbours),
    "another index": Attack(Tick(), "bad_path", last=None, spoil=lambda b: b.update(index=2)),
    "an index behind the last": Attack(Tick(), "bad_path", last=None, spoil=lambda b: b.update(index=7)),
    "an index below zero": Attack(Tick(), "bad_document", last=None, spoil=lambda b: b.update(index=-1)),
    "path too short": Attack(Tick(), "bad_path", last=None, spoil=lambda b: b["path"].pop()),
    "path too long": Attack(Tick(), "bad_path", last=None, spoil=lambda b: b["path"].append(b["path"][0])),
    "path reversed": Attack(Tick(), "bad_path", last=None, spoil=lambda b: b["path"].reverse()),
    "path with a short sibling": Attack(Tick(), "bad_path", last=None, spoil=lambda b: b["path"].insert(0, "AAAA")),
    "path of a thousand": Attack(Tick(), "bad_document", last=None, spoil=lambda b: b.update(path=["AAAA"] * 1000)),
    "path that is text": Attack(Tick(), "bad_document", last=None, spoil=lambda b: b.update(path="AAAA")),
    # signature
    "by a foreign key": Attack(Tick(signer="foreign"), "unknown_key", last=None),
    "by the release key": Attack(Tick(signer="release"), "unknown_key", last=None),
    "by the root key": Attack(Tick(signer="root"), "unknown_key", last=None),
    "statement flipped": Attack(Tick(), "bad_path", last=None, spoil=lambda b: flip(b, "statement")),
    "envelope flipped": Attack(Tick(), "bad_envelope", last=None, spoil=lambda b: flip(b, "envelope")),
    "weight changed": Attack(
        Tick(), "bad_path", last=None, spoil=lambda b: statement_of(b, lambda s: s["deployments"][0].update(version=9))
    ),
    "expiry changed": Attack(
        Tick(),
        "bad_path",
        last=None,
        spoil=lambda b: statement_of(b, lambda s: s.update(expires="2040-01-01T00:00:00Z")),
    ),
    "another tick's envelope": Attack(
        Tick(), "bad_path", last=None, spoil=lambda b: b.update(envelope=renewed(1).bundle()["envelope"])
    ),
    # form
    "a field more": Attack(Tick(), "bad_document", last=None, spoil=lambda b: b.update(extra=1)),
    "a field less": Attack(Tick(), "bad_document", last=None, spoil=lambda b: b.pop("path")),
    "statement missing": Attack(Tick(), "bad_document", last=None, spoil=lambda b: b.update(statement=None)),
    "signed: no statements": Attack(
        Tick(spoil=lambda p: p.replace(b'"count":7', b'"count":0')), "bad_document", last=None
    ),
    "signed: fewer statements": Attack(
        Tick(spoil=lambda p: p.replace(b'"count":7', b'"count":3')), "bad_path", last=None
    ),
    "signed: more statements": Attack(
        Tick(spoil=lambda p: p.replace(b'"count":7', b'"count":9')), "bad_path", last=None
    ),
    "signed: another root": Attack(
        Tick(spoil=lambda p: p.replace(b'"root":"', b'"root":"00')), "bad_document", last=None
    ),
    "signed: another time": Attack(Tick(spoil=lambda p: p.replace(b"T12:00", b"T12:01")), "bad_document", last=None),
    "signed: another kind": Attack(
        Tick(spoil=lambda p: p.replace(b'"assignments"', b'"assignment"')), "bad_document", last=None
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_assignment_is_refused(name: str) -> None:
    attack = ATTACKS[name]
    bundle = attack.tick.bundle()
    attack.spoil(bundle)
    with pytest.raises(AifbError) as refusal:
        verify(bundle, last=attack.last, now=NOW + attack.clock_h * HOUR, node=attack.node)
    assert refusal.value.code == attack.code, refusal.value.sentence


def test_each_attack_fails_for_its_own_reason() -> None:
    """The neighbours of what is refused are accepted: the limits lie where they are said to lie."""
    verify(renewed(1, sequence=5 + (1 << 32)).bundle(), last=LAST)
    verify(renewed(1e-6).bundle(), last=LAST)
    verify(Tick(sequence=6).bundle(), last=LAST, now=NOW + 23.99 * HOUR)
    verify(Tick(sequence=6).bundle(), last=LAST, now=NOW - 1000 * HOUR)
    verify(Tick(sequence=6, lifetime=HOUR).bundle(), last=LAST, now=NOW - 1000 * HOUR)


def test_server_can_not_stretch_time() -> None:
    """An `issued` ahead of the node's clock counts as time seen: nothing older lives beyond it."""
    ahead = Tick(sequence=6, issued=NOW + 40 * HOUR)
    last = trust.accepted(verify(ahead.bundle(), last=LAST), LAST)
    with pytest.raises(AifbError) as refusal:
        verify(Tick(sequence=7, issued=NOW + HOUR).bundle(), last=last, now=NOW)
    assert refusal.value.code == "expired"


def test_expired_root_accepts_nothing_new() -> None:
    with pytest.raises(AifbError) as refusal:
        verify(Tick().bundle(), trusted=root(expires=NOW))
    assert refusal.value.code == "expired"


def test_revoked_director_key_is_unknown() -> None:
    rotated = root(version=2, director="next director", epoch=2)
    for tick in (Tick(), Tick(epoch=2)):
        with pytest.raises(AifbError) as refusal:
            verify(tick.bundle(), trusted=rotated)
        assert refusal.value.code == "unknown_key"


@pytest.mark.parametrize(
    ("stored", "reported"),
    [(7, (1, 8 + (1 << 32))), (0, (1, (1 << 63) - 1)), (7, (2, 1))],
    ids=["far", "last", "epoch"],
)
def test_report_that_no_honest_history_explains_calls_a_person(stored: int, reported: tuple[int, int]) -> None:
    with pytest.raises(AifbError) as refusal:
        next_sequence(stored=stored, reported=reported, director_epoch=1, changed=True)
    assert refusal.value.code == "sequence_too_far"


STATEMENTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "another type": lambda s: s.update(type="manifest"),
    "node that is no UUID": lambda s: s.update(node="node-1"),
    "sequence zero": lambda s: s.update(sequence=0),
    "sequence of 2^63": lambda s: s.update(sequence=1 << 63),
    "sequence as a float": lambda s: s.update(sequence=6.0),
    "sequence true": lambda s: s.update(sequence=True),
    "expires before issued": lambda s: s.update(expires="2030-01-31T11:00:00Z"),
    "expires as issued": lambda s: s.update(expires=s["issued"]),
    "valid for more than a day": lambda s: s.update(expires="2030-02-01T12:00:00.000001Z"),
    "time with an offset": lambda s: s.update(issued="2030-01-31T12:00:00+00:00"),
    "deployments that are an object": lambda s: s.update(deployments={}),
    "2,000 deployments": lambda s: s.update(deployments=s["deployments"] * 2000),
    "one deployment twice": lambda s: s.update(deployments=[{**s["deployments"][0], "weight": 50}] * 2),
    "weights of 99": lambda s: s["deployments"][0].update(weight=99),
    "weight of 101": lambda s: s["deployments"][0].update(weight=101),
    "weight below zero": lambda s: s["deployments"][0].update(weight=-1),
    "mirror on a baseline": lambda s: s["deployments"][0].update(mirror_percent=10),
    "unknown role": lambda s: s["deployments"][0].update(role="owner"),
    "model with a path": lambda s: s["deployments"][0].update(model="../etc"),
    "digest too short": lambda s: s["deployments"][0].update(digest="ab" * 63),
    "digest in capitals": lambda s: s["deployments"][0].update(digest="AB" * 64),
    "length zero": lambda s: s["deployments"][0].update(length=0),
    "field more": lambda s: s["deployments"][0].update(command="rm"),
    "field less": lambda s: s["deployments"][0].pop("rollout"),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_malformed_statement_is_refused_even_if_the_director_signed_it(name: str) -> None:
    parsed = json.loads(Tick().statements()[3])
    STATEMENTS[name](parsed)
    with pytest.raises(AifbError) as refusal:
        trust.parse_statement(json.dumps(parsed).encode())
    assert refusal.value.code == "bad_document"


def test_candidates_may_be_mirrored_and_weights_of_each_model_sum_to_100() -> None:
    parsed = json.loads(Tick().statements()[3])
    baseline = parsed["deployments"][0]
    candidate = {**baseline, "id": NODES[0], "version": 2, "role": "candidate", "weight": 10, "mirror_percent": 10}
    parsed["deployments"] = [{**baseline, "weight": 90}, {**candidate, "rollout": NODES[1], "stage": 0, "attempt": 1}]
    assert [d.weight for d in trust.parse_statement(json.dumps(parsed).encode()).deployments] == [90, 10]


def test_statements_of_two_moments_are_not_signed_together() -> None:
    statements = [Tick().statements()[0], renewed(1).statements()[1]]
    with pytest.raises(AifbError) as refusal:
        trust.bundle_statements(statements, issued=NOW)
    assert refusal.value.code == "bad_document"


def test_inner_nodes_can_not_pose_as_statements() -> None:
    """A forged bundle that presents two leaves as one statement's bytes: leaf and node prefixes keep them apart."""
    statements = Tick(nodes=NODES[:2]).statements()
    payload, paths = trust.bundle_statements(statements, issued=NOW)
    envelope = signing.sign(payload, trust.ASSIGNMENTS_TYPE, [key("director")])
    inner = paths[1][0] + paths[0][0]
    with pytest.raises(AifbError) as refusal:
        verify(trust.make_bundle(inner, 0, [], envelope), node=NODES[0])
    assert refusal.value.code == "bad_path"
