"""Every acceptance rule, end to end with real keys: what a node takes, what it refuses and what it keeps meanwhile."""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path

import pytest

from aifb.errors import AifbError
from node.agent.errors import Permanent
from node.agent.trust import TrustStore
from protocol.messages import AssignmentBundle
from tests.agent.keys import NODE, NOON, Director, deployment, manifest_of

HOUR = timedelta(hours=1)


def _store(folder: Path, director: Director) -> TrustStore:
    store = TrustStore(folder, director.pin)
    store.accept_root_chain(director.roots)
    return store


def _refusal(store: TrustStore, bundle: AssignmentBundle, *, now: timedelta = HOUR) -> str:
    before = store.assignment
    with pytest.raises(AifbError) as refused:
        store.accept_assignment(bundle, node_id=NODE, now=NOON + now)
    assert store.assignment is before
    return refused.value.code


def _flipped(text: str) -> str:
    raw = bytearray(base64.b64decode(text))
    raw[len(raw) // 2] ^= 1
    return base64.b64encode(raw).decode()


def test_an_accepted_assignment_survives_a_restart(tmp_path: Path) -> None:
    director = Director()
    store = _store(tmp_path, director)
    bundle = director.bundle(7, [deployment()])
    assert store.accept_assignment(bundle, node_id=NODE, now=NOON + HOUR)
    assert not store.accept_assignment(bundle, node_id=NODE, now=NOON + HOUR)  # the same again is no news
    again = TrustStore(tmp_path, director.pin)
    assert again.assignment == store.assignment
    assert again.root is not None
    assert again.root.version == 1


def test_it_persists_however_long_the_control_plane_is_away(tmp_path: Path) -> None:
    director = Director()
    _store(tmp_path, director).accept_assignment(director.bundle(7, [deployment()]), node_id=NODE, now=NOON)
    assert TrustStore(tmp_path, director.pin).assignment is not None  # loading asks for no time at all


@pytest.mark.parametrize(
    ("code", "bundle"),
    [
        ("sequence_too_low", lambda d: d.bundle(4, [deployment()])),
        ("content_changed", lambda d: d.bundle(5, [deployment("b")], issued=NOON + HOUR)),
        ("replayed", lambda d: d.bundle(5, [deployment()], issued=NOON - HOUR)),
        ("sequence_too_far", lambda d: d.bundle(6 + 2**32, [deployment()])),
        ("expired", lambda d: d.bundle(6, [deployment()], life=HOUR)),
        ("wrong_node", lambda d: d.bundle(6, [deployment()], node=NODE[:-1] + "2")),
        ("unknown_key", lambda d: d.bundle(6, [deployment()], signer="stranger")),
    ],
)
def test_refused_assignments_change_nothing(tmp_path: Path, code: str, bundle: object) -> None:
    director = Director()
    store = _store(tmp_path, director)
    store.accept_assignment(director.bundle(5, [deployment()]), node_id=NODE, now=NOON)
    assert callable(bundle)
    assert _refusal(store, bundle(director)) == code
    assert TrustStore(tmp_path, director.pin).last == store.last


@pytest.mark.parametrize("part", ["statement", "envelope"])
def test_a_flipped_bit_is_refused(tmp_path: Path, part: str) -> None:
    director = Director()
    bundle = director.bundle(6, [deployment()])
    forged = bundle.model_copy(update={part: _flipped(getattr(bundle, part))})
    assert _refusal(_store(tmp_path, director), forged) in {"bad_path", "bad_signature", "bad_envelope"}


def test_a_renewal_moves_issued_and_a_clock_set_back_revives_nothing(tmp_path: Path) -> None:
    director = Director()
    store = _store(tmp_path, director)
    store.accept_assignment(director.bundle(5, [deployment()]), node_id=NODE, now=NOON)
    store.accept_assignment(director.bundle(5, [deployment()], issued=NOON + 12 * HOUR), node_id=NODE, now=NOON)
    assert store.last is not None
    assert store.last.issued == NOON + 12 * HOUR
    stale = director.bundle(6, [deployment("b")], issued=NOON - HOUR, life=6 * HOUR)
    assert _refusal(store, stale, now=-HOUR) == "expired"  # by the latest `issued` that was ever verified


def test_a_rotated_director_is_followed_and_the_old_assignment_stays(tmp_path: Path) -> None:
    director = Director()
    store = _store(tmp_path, director)
    store.accept_assignment(director.bundle(2**40, [deployment()]), node_id=NODE, now=NOON)
    director.epoch = 2
    store.accept_successors([director.add_root(director="second director")])
    assert _refusal(store, director.bundle(2**40 + 1, [deployment()])) == "unknown_key"
    again = TrustStore(tmp_path, director.pin)  # accepted under root 1, whose director is revoked by now
    assert again.assignment == store.assignment
    renewed = director.bundle(1, [deployment("b")], signer="second director")
    assert again.accept_assignment(renewed, node_id=NODE, now=NOON + HOUR)  # a greater epoch beats any sequence


def test_a_root_that_its_predecessor_did_not_sign_is_refused(tmp_path: Path) -> None:
    director = Director()
    store = _store(tmp_path, director)
    with pytest.raises(AifbError) as refused:
        store.accept_successors([director.add_root(signers=("stranger",))])
    assert refused.value.code == "unknown_key"
    assert store.root is not None
    assert store.root.version == 1


def test_files_that_contradict_the_pin_are_not_used(tmp_path: Path) -> None:
    _store(tmp_path, Director())
    with pytest.raises(Permanent, match="empty home"):
        TrustStore(tmp_path, "0" * 64)


def test_manifests_are_bound_to_the_deployment_and_the_floor_only_rises(tmp_path: Path) -> None:
    director = Director()
    store = _store(tmp_path, director)
    new, old = deployment("new", version=3), deployment("old", version=1)
    cases = [
        ("wrong_artifact", manifest_of(old), new),
        ("unknown_key", manifest_of(new, signer="director"), new),  # the director may not sign artifacts
    ]
    for code, envelope, wanted in cases:
        with pytest.raises(AifbError) as refused:
            store.accept_manifest(envelope, wanted)
        assert refused.value.code == code
    store.accept_manifest(manifest_of(old), old)
    store.accept_manifest(manifest_of(new, floor=2), new)
    again = TrustStore(tmp_path, director.pin)
    with pytest.raises(AifbError) as refused:
        again.accept_manifest(manifest_of(old), old)
    assert refused.value.code == "below_floor"
    assert again.manifest(old) is not None  # accepted before the floor rose: it may go on serving and restart
    again.forget_manifests(frozenset({new.digest}))
    assert again.manifest(old) is None
    assert again.manifest(new) is not None
