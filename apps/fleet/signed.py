"""Who sent a request to the agent API: signature, time, generation and phase, judged the same way by web and live."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings

from apps.fleet.credentials import protocol_too_old
from apps.fleet.models import Node, NodePhase
from apps.lib.errors import DomainError
from protocol import signing
from protocol.messages import OLDEST_SERVED
from protocol.signing import SignedFields

CHALLENGE_LIFE_S = 60.0
NONCE_HEX = 32


class NotAuthentic(DomainError):
    """The request is not what it claims; `extra` goes into the problem document."""

    status = 401

    def __init__(self, code: str, sentence: str, *, status: int | None = None, **extra: Any) -> None:
        super().__init__(code, sentence, status=status)
        self.extra = extra


@dataclass(frozen=True)
class SignedRequest:
    """A request as it came, its headers parsed: nothing of it is trusted yet."""

    method: str
    target: str  # path and query exactly as sent
    body: bytes
    node_id: UUID
    fields: SignedFields
    signature: bytes

    @property
    def nonce(self) -> bytes:
        return bytes.fromhex(self.fields.nonce)


@dataclass(frozen=True)
class Credential:
    """What the database says of the node that a request names."""

    public_key: bytes
    generation: int
    used: bool
    expires: datetime
    phase: str

    @classmethod
    def of(cls, node: Node) -> Credential:
        return cls(
            bytes(node.public_key),
            node.credential_generation,
            node.credential_used,
            node.credential_expires_at,
            node.phase,
        )


def parse(method: str, target: str, body: bytes, headers: Mapping[str, str]) -> SignedRequest:
    """Read the signature headers. Raises NotAuthentic(bad_signature_headers), or protocol_too_old (426)."""
    try:
        fields, signature = signing.parse_headers(headers)
        node_id = UUID(fields.node)
        if len(bytes.fromhex(fields.nonce)) * 2 != NONCE_HEX or len(fields.nonce) != NONCE_HEX:
            raise ValueError(f"The nonce must be {NONCE_HEX} hexadecimal characters.")
    except ValueError as bad:
        raise NotAuthentic("bad_signature_headers", f"{bad}") from None
    if fields.protocol < OLDEST_SERVED:
        raise protocol_too_old(fields.protocol)
    return SignedRequest(method, target, body, node_id, fields, signature)


def check(request: SignedRequest, credential: Credential | None, now: datetime, *, renewing: bool = False) -> None:
    """Judge a request against the node's credential; pure. What is left to the caller is that its nonce is fresh.

    `renewing` leaves expiry and generation to `credentials.renew`. Raises NotAuthentic: unknown_node, bad_signature,
    clock_skew (with a challenge), credential_expired (all 401), generation_stale, node_pending, node_rejected,
    node_quarantined, node_banned (403).
    """
    if credential is None:
        raise NotAuthentic("unknown_node", f"There is no node {request.fields.node} here; enrol first.")
    text = signing.canonical(request.method, request.target, request.body, request.fields)
    if not signing.verify(credential.public_key, request.signature, text):
        raise NotAuthentic("bad_signature", f"The request is not signed by the key of node {request.fields.node}.")
    _check_time(request, now)
    _check_phase(credential)
    if renewing:
        return
    if not generation_fits(request.fields.generation, credential):
        raise NotAuthentic(
            "generation_stale",
            f"Credential generation {request.fields.generation} is not {credential.generation}, the newest; renew.",
            status=403,
        )
    if credential.expires <= now:
        raise NotAuthentic("credential_expired", "The credential has expired; renew it with the same key.")


def generation_fits(generation: int, credential: Credential) -> bool:
    """The newest generation is good, and the one before it until the newest is first used."""
    return generation == credential.generation or (generation == credential.generation - 1 and not credential.used)


def _check_time(request: SignedRequest, now: datetime) -> None:
    # a challenge of ours proves freshness as well as a right clock does
    if challenge_holds(request.node_id, request.fields.challenge, now):
        return
    skew_s = float(request.fields.time) - now.timestamp()
    if not abs(skew_s) <= signing.MAX_SKEW_S:  # NaN is no time either
        raise NotAuthentic(
            "clock_skew",
            f"The request's time is {skew_s:+.0f} s off ours; send it again with the challenge, and mind the offset.",
            server_time=now.timestamp(),
            challenge=make_challenge(request.node_id, now),
        )


def _check_phase(credential: Credential) -> None:
    if credential.phase in Node.MAY_TALK:
        return
    sentence = {
        NodePhase.PENDING: "The node waits for a person to accept it; ask again later.",
        NodePhase.REJECTED: "A person rejected this node.",
        NodePhase.QUARANTINED: "The node is quarantined; its page says why. A person must accept or ban it.",
        NodePhase.BANNED: "The node is banned.",
    }[NodePhase(credential.phase)]
    raise NotAuthentic(f"node_{credential.phase}", sentence, status=403)


def make_challenge(node_id: UUID, now: datetime) -> str:
    """Return a text that only we can make and that names its node and moment; no state is kept for it."""
    moment = str(int(now.timestamp()))
    return f"{moment}.{_challenge_mac(node_id, moment)}"


def challenge_holds(node_id: UUID, challenge: str, now: datetime) -> bool:
    """Tell whether we made this challenge for this node within the last minute."""
    moment, _, mac = challenge.partition(".")
    if not moment.isdigit() or not hmac.compare_digest(mac.encode(), _challenge_mac(node_id, moment).encode()):
        return False
    return 0 <= now.timestamp() - int(moment) <= CHALLENGE_LIFE_S


def _challenge_mac(node_id: UUID, moment: str) -> str:
    text = f"farrier-challenge-v1\n{node_id}\n{moment}".encode()
    return hmac.new(settings.SECRET_KEY.encode(), text, hashlib.sha256).hexdigest()
