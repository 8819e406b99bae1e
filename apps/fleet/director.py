"""The director: the key that signs assignments, read by `worker` only, and the root that vouches for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from django.conf import settings

from aifb import signing
from aifb.trust import ROOT_TYPE, parse_root
from apps.lib.errors import Conflict
from apps.models.models import TrustRoot


@dataclass(frozen=True)
class Director:
    """A signing key and the epoch in which the newest root lists it."""

    key: rsa.RSAPrivateKey
    epoch: int

    def sign(self, payload: bytes, payload_type: str) -> bytes:
        """Return the DSSE envelope of a payload."""
        return signing.sign(payload, payload_type, [self.key])


def load_director() -> Director:
    """Return the director as the newest trust root knows it.

    Raises Conflict: no_director_key, no_trust_root, director_unknown (the root doesn't list this key: no node would
    accept what it signs).
    """
    path = settings.FARRIER.director_key
    if path is None:
        raise Conflict("no_director_key", "FARRIER_DIRECTOR_KEY names no key file; only a worker that has one signs.")
    envelope = TrustRoot.objects.order_by("-version").values_list("envelope", flat=True).first()
    if envelope is None:
        raise Conflict("no_trust_root", "No trust root is published, so no node would accept an assignment.")
    return _director(path, path.stat().st_mtime_ns, bytes(envelope))


@lru_cache(maxsize=4)
def _director(path: Path, _modified_ns: int, envelope: bytes) -> Director:
    key = signing.load_private_key(path.read_bytes())
    # our own database's root: its signatures are for the nodes to check
    root = parse_root(signing.unpack(envelope, ROOT_TYPE)[0])
    if signing.keyid(key.public_key()) not in root.roles["director"].keyids:
        raise Conflict("director_unknown", f"Trust root {root.version} does not list the director key in {path.name}.")
    return Director(key, root.director_epoch)
