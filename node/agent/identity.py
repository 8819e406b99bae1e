"""Who this node is: its own key, made here and never sent; its credential; the trust root it was told to pin."""

from __future__ import annotations

import base64
import hashlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.agent import AGENT_VERSION
from node.agent.client import ControlPlane, Credential
from node.agent.errors import Permanent
from node.agent.files import read_json, write_atomically, write_json
from protocol.messages import PROTOCOL_VERSION, EnrolRequest, EnrolResponse
from protocol.signing import canonical_enrol

RENEW_AT = 0.67  # of a credential's life
KEY_FILE = "node.key"
IDENTITY_FILE = "identity.json"


@dataclass(frozen=True)
class JoinToken:
    """What a person hands to a new node: a single-use secret and the digest of the trust root to pin."""

    secret: str
    root_sha256: str

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Read `<secret>.<64 hex characters>`. Raises Permanent(bad_join_token)."""
        secret, dot, digest = text.strip().rpartition(".")
        is_hex = len(digest) == 64 and all(c in "0123456789abcdef" for c in digest)
        if not (dot and secret and is_hex):
            raise Permanent(
                "bad_join_token",
                "The join token must read <token>.<SHA-256 of the trust root>; copy it whole from the fleet page.",
            )
        return cls(secret, digest)


@dataclass(frozen=True)
class Identity:
    """What the control plane granted this node; stored before it is used."""

    node: str
    name: str
    zone: str
    generation: int
    issued: datetime
    expires: datetime
    root_sha256: str

    def renew_at(self) -> datetime:
        """When to ask for the next generation: at 67 % of the credential's life."""
        return self.issued + (self.expires - self.issued) * RENEW_AT

    def credential(self) -> Credential:
        """The part that every request states."""
        return Credential(self.node, self.generation)


def load_or_create_key(home: Path) -> Ed25519PrivateKey:
    """Return the node's key, made on the first start (PKCS8 PEM, mode 0600)."""
    path = home / KEY_FILE
    if path.exists():
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise Permanent("bad_node_key", f"{path} holds no Ed25519 key; restore it, or enrol anew in an empty home.")
        return key
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_atomically(path, pem, mode=0o600)
    return key


def public_key_b64(key: Ed25519PrivateKey) -> str:
    """Base64 of the 32 raw public bytes."""
    raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return base64.b64encode(raw).decode()


class IdentityStore:
    """The identity file of one agent home."""

    def __init__(self, home: Path) -> None:
        self._path = home / IDENTITY_FILE

    def load(self) -> Identity | None:
        """Return the stored identity; None before enrolment. Raises Permanent(bad_identity) when the file is broken."""
        try:
            raw: dict[str, Any] | None = read_json(self._path)
            if raw is None:
                return None
            times = {name: datetime.fromisoformat(raw[name]) for name in ("issued", "expires")}
            return Identity(**{**raw, **times})
        except (ValueError, TypeError, KeyError) as bad:
            raise Permanent("bad_identity", f"{self._path} is broken ({bad}); restore it from a backup.") from None

    def save(self, identity: Identity) -> None:
        """Store durably: a renewed generation must be on disk before it is first used."""
        value = {**identity.__dict__, "issued": identity.issued.isoformat(), "expires": identity.expires.isoformat()}
        write_json(self._path, value, mode=0o600)


@dataclass(frozen=True)
class Enrolment:
    """What the node says of itself when it joins."""

    token: JoinToken
    name: str
    zone: str
    gateway_url: str = ""
    hardware: dict[str, Any] | None = None


def enrol_request(key: Ed25519PrivateKey, enrolment: Enrolment) -> EnrolRequest:
    """Build the request that proves possession of the key and presents the join token."""
    hostname, public_key = socket.gethostname(), public_key_b64(key)
    text = canonical_enrol(enrolment.token.secret, public_key, enrolment.name, hostname, enrolment.zone)
    return EnrolRequest(
        token=enrolment.token.secret,
        public_key=public_key,
        name=enrolment.name,
        hostname=hostname,
        zone=enrolment.zone,
        agent_version=AGENT_VERSION,
        protocol=PROTOCOL_VERSION,
        gateway_url=enrolment.gateway_url,
        hardware=enrolment.hardware or {},
        signature=base64.b64encode(key.sign(text)).decode(),
    )


def pinned_chain(answer: EnrolResponse, token: JoinToken) -> list[bytes]:
    """Return the root envelopes of an enrolment answer, whose first must be the one that the join token pins.

    Raises Permanent(root_not_pinned): whoever answered is not the control plane that made the token.
    """
    chain = [base64.b64decode(envelope) for envelope in answer.trust_root]
    if not chain or hashlib.sha256(chain[0]).hexdigest() != token.root_sha256:
        raise Permanent(
            "root_not_pinned",
            "The server's trust root is not the one that the join token pins; check the address and the token.",
        )
    return chain


def enrol(
    store: IdentityStore,
    control_plane: ControlPlane,
    key: Ed25519PrivateKey,
    enrolment: Enrolment,
    *,
    accept_root: Callable[[list[bytes]], object],
) -> Identity:
    """Join, verify and keep the trust root (`accept_root` gets the pinned chain), then store the identity.

    A crash or lost answer anywhere in between is mended by calling it again: the server answers the same.
    """
    answer = control_plane.enrol(enrol_request(key, enrolment))
    accept_root(pinned_chain(answer, enrolment.token))
    identity = Identity(
        node=str(answer.node),
        name=enrolment.name,
        zone=enrolment.zone,
        generation=answer.generation,
        issued=datetime.fromtimestamp(answer.server_time, UTC),
        expires=answer.expires,
        root_sha256=enrolment.token.root_sha256,
    )
    store.save(identity)
    control_plane.credential = identity.credential()
    return identity


def renew(store: IdentityStore, control_plane: ControlPlane, identity: Identity) -> Identity:
    """Exchange the credential for the next generation; repeating it after a lost answer is harmless."""
    answer = control_plane.renew()
    renewed = replace(
        identity,
        generation=answer.generation,
        issued=datetime.fromtimestamp(answer.server_time, UTC),
        expires=answer.expires,
    )
    store.save(renewed)
    control_plane.credential = renewed.credential()
    return renewed


def is_renewal_due(identity: Identity, now: datetime, clock_offset_s: float = 0.0) -> bool:
    """Tell whether 67 % of the credential's life has passed, by the server's clock as last measured."""
    return now + timedelta(seconds=clock_offset_s) >= identity.renew_at()
