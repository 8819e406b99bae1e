"""The client against a real HTTP server on loopback that speaks the protocol's signing rules with the shared code."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
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
from protocol.signing import MAX_SKEW_S, canonical, canonical_enrol, parse_headers, verify

ROOT_V1 = b'{"payload":"root version 1"}'
TOKEN = JoinToken("secret-of-sixteen-plus", hashlib.sha256(ROOT_V1).hexdigest())


class Plane(ThreadingHTTPServer):
    """A far side that checks signatures for real and answers what the test sets."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.node = str(uuid4())
        self.public_key = b""
        self.generation = 1
        self.clock_ahead_s = 0.0
        self.root = ROOT_V1
        self.refuse: tuple[int, dict[str, Any]] | None = None
        self.seen: list[str] = []
        self.challenges: set[str] = set()

    def time(self) -> float:
        return time.time() + self.clock_ahead_s

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Plane
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """The test reads `seen` instead."""

    def _answer(self, status: int, value: dict[str, Any], **headers: str) -> None:
        raw = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(raw)))
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        self.wfile.write(raw)

    def _problem(self, status: int, code: str, **extra: Any) -> None:
        self._answer(status, {"title": code, "status": status, "detail": f"Sentence of {code}.", "code": code, **extra})

    def do_POST(self) -> None:
        plane = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        plane.seen.append(self.path)
        if self.path == "/agent/v1/enrol":
            return self._enrol(json.loads(body))
        fields, signature = parse_headers(self.headers)  # type: ignore[arg-type]
        assert verify(plane.public_key, signature, canonical("POST", self.path, body, fields))
        if abs(float(fields.time) - plane.time()) > MAX_SKEW_S and fields.challenge not in plane.challenges:
            plane.challenges.add("prove-it")
            return self._problem(401, "clock_skew", server_time=plane.time(), challenge="prove-it")
        if plane.refuse:
            status, extra = plane.refuse
            return self._problem(status, **extra)
        if self.path == "/agent/v1/renew":
            plane.generation = fields.generation + 1
            granted = {"generation": plane.generation, "expires": "2030-01-02T00:00:00Z"}
            return self._answer(200, {**granted, "server_time": plane.time()})
        return self._answer(
            200,
            {"server_time": plane.time(), "interval_s": 5, "jitter_s": 1, "phase": "active", "root_version": 1},
        )

    def _enrol(self, asked: dict[str, Any]) -> None:
        key = base64.b64decode(asked["public_key"])
        text = canonical_enrol(asked["token"], asked["public_key"], asked["name"], asked["hostname"], asked["zone"])
        assert verify(key, base64.b64decode(asked["signature"]), text)
        self.server.public_key = key
        granted = {"node": self.server.node, "phase": "accepted", "generation": 1, "expires": "2030-01-01T00:00:00Z"}
        chain = [base64.b64encode(self.server.root).decode()]
        self._answer(200, {**granted, "trust_root": chain, "server_time": self.server.time()})


@pytest.fixture
def plane() -> Iterator[Plane]:
    server = Plane()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def _join(plane: Plane, home: Path, accepted: list[list[bytes]] | None = None) -> tuple[ControlPlane, IdentityStore]:
    key = load_or_create_key(home)
    client, store = ControlPlane(plane.url, key), IdentityStore(home)
    keep = accepted if accepted is not None else []
    enrol(store, client, key, Enrolment(TOKEN, "node-1", "zone-a"), accept_root=keep.append)
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
    assert accepted == [[ROOT_V1]]
    identity = store.load()
    assert identity is not None
    assert identity.credential() == client.credential
    assert (tmp_path / "identity.json").stat().st_mode & 0o777 == 0o600


def test_a_server_with_another_root_is_refused_and_nothing_is_stored(plane: Plane, tmp_path: Path) -> None:
    plane.root = b'{"payload":"an impostor"}'
    with pytest.raises(Permanent) as refused:
        _join(plane, tmp_path)
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
