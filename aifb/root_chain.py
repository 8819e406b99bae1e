"""The trust root: which keys may sign what. Version N+1 is signed by N's keys and its own; omission revokes a key."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hmac import compare_digest

from cryptography.hazmat.primitives.asymmetric import rsa

from aifb import documents, signing
from aifb.errors import AifbError

ROOT_TYPE = "application/vnd.farrier.root+json"
ROLES = ("root", "release", "director")
MAX_KEYS = 64


@dataclass(frozen=True)
class Role:
    """The keys of one role and how many of them must sign."""

    keyids: frozenset[str]
    threshold: int


@dataclass(frozen=True)
class Root:
    """A parsed trust root. `director_epoch` rises when the director's key is rotated."""

    version: int
    expires: datetime
    director_epoch: int
    keys: Mapping[str, rsa.RSAPublicKey]
    roles: Mapping[str, Role]

    def keys_of(self, role: str) -> dict[str, rsa.RSAPublicKey]:
        """The public keys of a role, by key id."""
        return {identity: self.keys[identity] for identity in self.roles[role].keyids}

    def verify(self, envelope: bytes, payload_type: str, role: str) -> bytes:
        """The payload of an envelope that enough keys of `role` signed; raises AifbError as signing.verify does."""
        return signing.verify(envelope, payload_type, self.keys_of(role), self.roles[role].threshold)


def make_root(
    *,
    version: int,
    expires: datetime,
    director_epoch: int,
    roles: Mapping[str, Iterable[rsa.RSAPublicKey]],
    thresholds: Mapping[str, int] | None = None,
) -> bytes:
    """The payload of a root; thresholds are 1 where none is given. Raises AifbError as parse_root does."""
    listed = {role: {signing.keyid(key): key for key in keys} for role, keys in roles.items()}
    keys = {identity: key for by_id in listed.values() for identity, key in by_id.items()}
    payload = documents.canonical(
        {
            "type": "root",
            "version": version,
            "expires": documents.format_time(expires),
            "director_epoch": director_epoch,
            "keys": {identity: signing.public_key_pem(key).decode() for identity, key in keys.items()},
            "roles": {
                role: {"keyids": sorted(by_id), "threshold": (thresholds or {}).get(role, 1)}
                for role, by_id in listed.items()
            },
        }
    )
    parse_root(payload)
    return payload


def parse_root(payload: bytes) -> Root:
    """Parse a root's payload, whose signatures the caller has checked or checks next.

    Raises AifbError: bad_document, bad_key.
    """
    where = "The trust root"
    fields = documents.Fields(documents.parse(payload, where), where, "type version expires director_epoch keys roles")
    fields.literal("type", "root")
    keys = {}
    for identity, pem in fields.mapping("keys", MAX_KEYS).items():
        if not isinstance(pem, str):
            fields.refuse("keys", "PEM texts by key id")
        keys[identity] = signing.load_public_key(pem.encode())
        if signing.keyid(keys[identity]) != identity:
            raise AifbError(
                "bad_key", f"The trust root lists a key under the id {identity[:16]}…, which is not its own."
            )
    listed = documents.Fields(fields.raw("roles"), f"{where}'s roles", " ".join(ROLES))
    roles = {role: _parse_role(listed.raw(role), role, keys) for role in ROLES}
    return Root(fields.integer("version", 1), fields.time("expires"), fields.integer("director_epoch"), keys, roles)


def _parse_role(value: object, role: str, keys: Mapping[str, object]) -> Role:
    fields = documents.Fields(value, f"The role {role!r}", "keyids threshold")
    keyids = fields.items("keyids", MAX_KEYS)
    known = {identity for identity in keyids if isinstance(identity, str) and identity in keys}
    if not known or len(known) != len(keyids):
        fields.refuse("keyids", "ids of keys that the root lists, each once, at least one")
    return Role(frozenset(known), fields.integer("threshold", 1, len(known)))


def root_digest(payload: bytes) -> str:
    """SHA3-512 of a root's payload, in hex: what a join token carries so that a new node can pin its first root."""
    return hashlib.sha3_512(payload).hexdigest()


def open_pinned_root(envelope: bytes, digest: str) -> Root:
    """The first root of a node: its payload must have the pinned digest, and be signed by its own root keys.

    Raises AifbError: bad_envelope, bad_root_chain, bad_document, bad_key, bad_signature, unknown_key.
    """
    payload, _ = signing.unpack(envelope, ROOT_TYPE)
    if not compare_digest(root_digest(payload), digest):
        raise AifbError("bad_root_chain", "The trust root is not the one that the join token names: get a new token.")
    root = parse_root(payload)
    root.verify(envelope, ROOT_TYPE, "root")
    return root


def verify_root_chain(trusted: Root, envelopes: Iterable[bytes]) -> Root:
    """Walk from a trusted root over its successors, each signed by enough root keys of both itself and its predecessor.

    Returns the last one (`trusted` itself for none). Expiry is judged where documents are accepted, not here: an
    expired root may still name its successor. Raises AifbError: bad_root_chain, bad_document, bad_envelope, bad_key,
    bad_signature, unknown_key.
    """
    for envelope in envelopes:
        following = parse_root(trusted.verify(envelope, ROOT_TYPE, "root"))
        following.verify(envelope, ROOT_TYPE, "root")
        if following.version != trusted.version + 1:
            raise AifbError(
                "bad_root_chain",
                f"Root {following.version} cannot follow root {trusted.version}: send every version in turn.",
            )
        if following.director_epoch < trusted.director_epoch:
            raise AifbError("bad_root_chain", f"Root {following.version} takes the director epoch back.")
        trusted = following
    return trusted
