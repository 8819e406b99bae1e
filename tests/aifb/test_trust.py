"""What honest publishers, directors and nodes do with the trust rules; tests/attacks has the others."""

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aifb import signing, trust
from aifb.errors import AifbError
from aifb.trust import next_sequence
from tests.aifb.trust_samples import (
    NODES,
    NOW,
    Tick,
    deployment,
    key,
    manifest,
    public,
    root,
    root_envelope,
    verify,
)


def test_envelope_opens_with_its_key_and_is_plain_dsse() -> None:
    envelope = signing.sign(b"payload", "text/plain", [key("release")])
    assert signing.verify(envelope, "text/plain", public("release")) == b"payload"
    parsed = json.loads(envelope)
    assert set(parsed) == {"payload", "payloadType", "signatures"}
    assert signing.pre_authentication(b"payload", "text/plain") == b"DSSEv1 10 text/plain 7 payload"


def test_threshold_counts_distinct_trusted_keys() -> None:
    envelope = signing.sign(b"payload", "text/plain", [key("release"), key("director"), key("root")])
    both = {**public("release"), **public("director")}
    assert signing.verify(envelope, "text/plain", both, threshold=2) == b"payload"
    with pytest.raises(AifbError) as refusal:
        signing.verify(envelope, "text/plain", both, threshold=3)
    assert refusal.value.code == "unknown_key"


def test_keys_survive_pem() -> None:
    pair = key("release")
    assert signing.keyid(signing.load_private_key(signing.private_key_pem(pair)).public_key()) in public("release")
    assert signing.keyid(signing.load_public_key(signing.public_key_pem(pair.public_key()))) in public("release")


def test_pinned_root_and_its_successors() -> None:
    first = root_envelope(1)
    payload, _ = signing.unpack(first, trust.ROOT_TYPE)
    trusted = trust.open_pinned_root(first, trust.root_digest(payload))
    handover = root_envelope(2, signers=("root", "next root"), roots=("next root",))
    rotated = root_envelope(3, signers=("next root",), roots=("next root",), director="next director", epoch=2)
    last = trust.verify_root_chain(trusted, [handover, rotated])
    assert (last.version, last.director_epoch) == (3, 2)
    assert set(last.keys_of("director")) == set(public("next director"))
    assert trust.verify_root_chain(trusted, []) is trusted


def test_every_node_of_a_tick_accepts_its_own_statement() -> None:
    for count in (1, 2, 3, 4, 5, 6, 7):
        tick = Tick(nodes=NODES[:count])
        for node, bundle in zip(tick.nodes, tick.bundles(), strict=True):
            statement = verify(bundle, node=node)
            assert statement.node == node
            assert statement.deployments == (deployment(),)


def test_bundle_survives_json() -> None:
    assert verify(json.loads(json.dumps(Tick().bundle()))).sequence == 5


def test_content_digest_is_that_of_the_rest_of_the_statement() -> None:
    raw = json.loads(Tick().statements()[3])
    assert verify(Tick().bundle()).content == trust.content_digest(raw)
    assert verify(Tick(sequence=9, issued=NOW + timedelta(hours=1)).bundle()).content == trust.content_digest(raw)
    assert verify(Tick(version=2).bundle()).content != trust.content_digest(raw)


def test_newer_assignments_renewals_and_rollbacks_are_accepted() -> None:
    last = None
    for tick in (
        Tick(sequence=5),
        Tick(sequence=5, issued=NOW + timedelta(hours=12)),  # renewed at half its life
        Tick(sequence=6, issued=NOW + timedelta(hours=13), version=2),
        Tick(sequence=7, issued=NOW + timedelta(hours=14), version=1),  # a rollback is a newer assignment
        Tick(sequence=900, issued=NOW + timedelta(hours=15), version=1),
    ):
        statement = verify(tick.bundle(), last=last, now=tick.issued)
        last = trust.accepted(statement, last)
        assert (last.sequence, last.issued) == (tick.sequence, tick.issued)


def test_new_epoch_leaves_a_stolen_keys_sequence_behind() -> None:
    stolen = trust.Accepted(1, (1 << 63) - 1, "00" * 32, NOW)
    rotated = root(version=2, director="next director", epoch=2)
    statement = verify(Tick(sequence=1, epoch=2, signer="next director").bundle(), last=stolen, trusted=rotated)
    assert trust.accepted(statement, stolen) == trust.Accepted(2, 1, statement.content, NOW)


def test_latest_issued_is_never_forgotten() -> None:
    last = trust.Accepted(1, 5, "00" * 32, NOW + timedelta(hours=2))
    statement = verify(Tick(sequence=6).bundle(), last=last)
    assert trust.accepted(statement, last).issued == NOW + timedelta(hours=2)


def test_manifest_of_the_assigned_artifact_is_accepted() -> None:
    assigned = deployment(4)
    found = trust.verify_manifest(manifest(assigned, floor=3), root=root(), deployment=assigned, floor=4)
    assert (found.version, found.digest, found.security_floor) == (4, assigned.digest, 3)


@pytest.mark.parametrize(
    ("stored", "reported", "changed", "expected"),
    [
        (0, None, True, 1),
        (7, None, False, 7),
        (7, None, True, 8),
        (7, (1, 7), False, 7),
        (7, (1, 7), True, 8),
        (7, (1, 5), True, 8),  # the node has not seen the last one yet
        (7, (1, 9), False, 10),  # the database was restored from before the node's assignment
        (7, (0, 1 << 60), False, 7),  # from before the director's key was rotated
        (7, (1, 7 + (1 << 32)), False, 8 + (1 << 32)),
    ],
)
def test_next_sequence(stored: int, reported: tuple[int, int] | None, changed: bool, expected: int) -> None:
    assert next_sequence(stored=stored, reported=reported, director_epoch=1, changed=changed) == expected


@given(st.integers(0, 1 << 62), st.integers(0, 1 << 62), st.booleans())
def test_next_sequence_always_passes_the_node(stored: int, reported: int, changed: bool) -> None:
    try:
        following = next_sequence(stored=stored, reported=(1, reported), director_epoch=1, changed=changed)
    except AifbError as refusal:
        too_far = refusal.code == "sequence_too_far" and reported > stored + (1 << 32)
        if not too_far:
            raise
    else:
        assert following > max(stored, reported) or (not changed and following == stored >= reported)


def test_floor_survives_in_the_nodes_hands() -> None:
    with pytest.raises(AifbError) as refusal:
        trust.verify_manifest(manifest(deployment(2)), root=root(), deployment=deployment(2), floor=3)
    assert refusal.value.code == "below_floor"


def test_one_signature_serves_all_nodes() -> None:
    assert len({bundle["envelope"] for bundle in Tick().bundles()}) == 1
