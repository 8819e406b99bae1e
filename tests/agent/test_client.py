"""The client against a real HTTP server on loopback that speaks the protocol's signing rules with the shared code."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from node.agent.client import ControlPlane
from node.agent.errors import CredentialStale, NodePending, Permanent, Temporary
from node.agent.identity import (
    Enrolment,
    IdentityStore,
    JoinToken,
    enrol,
    is_renewal_due,
    load_or_create_key,
    public_key_b64,
    renew,
)
from protocol.messages import PollRequest
from tests.agent.plane import Plane


def _token(plane: Plane) -> JoinToken:
    return JoinToken.parse(plane.join_token)


def _join(
    plane: Plane, home: Path, accepted: list[list[bytes]] | None = None, *, token: JoinToken | None = None
) -> tuple[ControlPlane, IdentityStore]:
    key = load_or_create_key(home)
    client, store = ControlPlane(plane.url, key), IdentityStore(home)
    keep = accepted if accepted is not None else []
    enrol(store, client, key, Enrolment(token or _token(plane), "node-1", "zone-a"), accept_root=keep.append)
    return client, store


def _poll_request() -> PollRequest:
    return PollRequest(boot_id=uuid4(), report_seq=1, agent_version="test")


def test_key_is_made_once_and_private(tmp_path: Path) -> None:
    first, second = load_or_create_key(tmp_path), load_or_create_key(tmp_path)
    assert public_key_b64(first) == public_key_b64(second)
    assert (tmp_path / "node.key").stat().st_mode & 0o777 == 0o600


def test_enrol_pins_the_root_and_stores_the_identity(plane: Plane, tmp_path: Path) -> None:
    accepted: list[list[bytes]] = []
    client, store = _join(plane, tmp_path, accepted)
    assert accepted == [plane.director.roots]
    identity = store.load()
    assert identity is not None
    assert identity.credential() == client.credential
    assert (tmp_path / "identity.json").stat().st_mode & 0o777 == 0o600


def test_a_server_with_another_root_is_refused_and_nothing_is_stored(plane: Plane, tmp_path: Path) -> None:
    with pytest.raises(Permanent) as refused:
        _join(plane, tmp_path, token=JoinToken("secret-of-sixteen-plus", "0" * 64))
    assert refused.value.code == "root_not_pinned"
    assert IdentityStore(tmp_path).load() is None


@pytest.mark.parametrize("text", ["", "no-dot", "secret.abc", ".".join(("", "0" * 64)), "secret." + "G" * 64])
def test_a_mangled_join_token_says_so(text: str) -> None:
    with pytest.raises(Permanent, match="fleet page"):
        JoinToken.parse(text)


def test_skew_is_answered_once_and_then_known(plane: Plane, tmp_path: Path) -> None:
    client, _ = _join(plane, tmp_path)
    plane.clock_ahead_s = 4_000.0  # it jumps after enrolment
    client.poll(_poll_request())
    assert client.clock_offset_s == pytest.approx(4_000.0, abs=5.0)
    before = len(plane.seen)
    client.poll(_poll_request())
    assert len(plane.seen) == before + 1  # no second challenge


def test_renewal_is_stored_before_it_is_used(plane: Plane, tmp_path: Path) -> None:
    client, store = _join(plane, tmp_path)
    identity = store.load()
    assert identity is not None
    assert not is_renewal_due(identity, identity.issued)
    assert is_renewal_due(identity, identity.renew_at())
    assert renew(store, client, identity).generation == 2
    stored = store.load()
    assert stored is not None
    assert stored.generation == 2
    assert client.credential == stored.credential()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "node_pending", NodePending),
        (403, "generation_stale", CredentialStale),
        (401, "credential_expired", CredentialStale),
        (403, "node_banned", Permanent),
        (426, "protocol_too_old", Permanent),
        (429, "too_many", Temporary),
        (503, "away", Temporary),
    ],
)
def test_refusals_are_typed(plane: Plane, tmp_path: Path, status: int, code: str, kind: type[Exception]) -> None:
    client, _ = _join(plane, tmp_path)
    plane.refuse = (status, {"code": code})
    with pytest.raises(kind) as refused:
        client.poll(_poll_request())
    assert type(refused.value) is kind
    assert getattr(refused.value, "code") == code  # noqa: B009
    assert str(refused.value) == f"Sentence of {code}."


def test_a_server_that_is_away_is_temporary(plane: Plane, tmp_path: Path) -> None:
    client, _ = _join(plane, tmp_path)
    away = ControlPlane("http://127.0.0.1:1", load_or_create_key(tmp_path))
    away.credential = client.credential
    with pytest.raises(Temporary) as refused:
        away.poll(_poll_request())
    assert refused.value.code == "unreachable"
