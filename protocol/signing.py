"""How an agent signs its requests: Ed25519 over one canonical text, the same on both sides."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

HEADER_NODE = "X-Farrier-Node"
HEADER_GENERATION = "X-Farrier-Generation"
HEADER_PROTOCOL = "X-Farrier-Protocol"
HEADER_TIME = "X-Farrier-Time"
HEADER_NONCE = "X-Farrier-Nonce"
HEADER_CHALLENGE = "X-Farrier-Challenge"
HEADER_SIGNATURE = "X-Farrier-Signature"

MAX_SKEW_S = 60.0
NONCE_LIFE_S = 180.0


@dataclass(frozen=True)
class SignedFields:
    """What a request states about itself besides method, path and body."""

    node: str
    generation: int
    protocol: int
    time: str
    nonce: str
    challenge: str = ""


def canonical(method: str, target: str, body: bytes, fields: SignedFields) -> bytes:
    """Return the text that is signed. `target` is path plus «?query» exactly as sent."""
    lines = (
        "farrier-request-v1",
        method.upper(),
        target,
        hashlib.sha256(body).hexdigest(),
        fields.node,
        str(fields.generation),
        str(fields.protocol),
        fields.time,
        fields.nonce,
        fields.challenge,
    )
    return "\n".join(lines).encode()


def canonical_enrol(token: str, public_key: str, name: str, hostname: str, zone: str) -> bytes:
    """Return the text by which an enrolling node proves that it holds the key it presents."""
    digest = hashlib.sha256(token.encode()).hexdigest()
    return "\n".join(("farrier-enrol-v1", digest, public_key, name, hostname, zone)).encode()


def sign_headers(key: Ed25519PrivateKey, method: str, target: str, body: bytes, fields: SignedFields) -> dict[str, str]:
    """Return the headers that make a request acceptable to the control plane."""
    signature = key.sign(canonical(method, target, body, fields))
    headers = {
        HEADER_NODE: fields.node,
        HEADER_GENERATION: str(fields.generation),
        HEADER_PROTOCOL: str(fields.protocol),
        HEADER_TIME: fields.time,
        HEADER_NONCE: fields.nonce,
        HEADER_SIGNATURE: base64.b64encode(signature).decode(),
    }
    if fields.challenge:
        headers[HEADER_CHALLENGE] = fields.challenge
    return headers


def parse_headers(headers: Mapping[str, str]) -> tuple[SignedFields, bytes]:
    """Return fields and signature of a request.

    Raises ValueError with a sentence when a header is missing or malformed.
    """
    try:
        fields = SignedFields(
            node=headers[HEADER_NODE],
            generation=int(headers[HEADER_GENERATION]),
            protocol=int(headers[HEADER_PROTOCOL]),
            time=headers[HEADER_TIME],
            nonce=headers[HEADER_NONCE],
            challenge=headers.get(HEADER_CHALLENGE, ""),
        )
        float(fields.time)
        signature = base64.b64decode(headers[HEADER_SIGNATURE], validate=True)
    except KeyError as missing:
        raise ValueError(f"The request lacks the header {missing.args[0]}; sign it as docs/protocol.md says.") from None
    except ValueError as bad:
        raise ValueError(f"A signature header is malformed ({bad}); sign it as docs/protocol.md says.") from None
    return fields, signature


def verify(public_key: bytes, signature: bytes, text: bytes) -> bool:
    """Tell whether `signature` over `text` was made by the node's key (32 raw bytes)."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, text)
    except InvalidSignature:
        return False
    return True
