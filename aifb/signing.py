"""DSSE envelopes: RSASSA-PSS with SHA3-512, MGF1 with SHA3-512, a salt of exactly 64 bytes, over the stored bytes.

`cryptography` does the mathematics. An envelope has one permitted spelling, so that no bit of it can be changed
without the change being seen.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from aifb import documents
from aifb.errors import AifbError

MIN_KEY_BITS = 3072
MAX_KEY_BITS = 8192
PUBLIC_EXPONENT = 65_537
SALT_BYTES = 64
MAX_SIGNATURES = 16

_HASH = hashes.SHA3_512()
_PADDING = padding.PSS(mgf=padding.MGF1(_HASH), salt_length=SALT_BYTES)


@dataclass(frozen=True)
class Verified:
    """A payload and the ids of the known keys that validly signed it."""

    payload: bytes
    signers: frozenset[str]


def generate_key(bits: int = MIN_KEY_BITS) -> rsa.RSAPrivateKey:
    """A new RSA key of 3072 to 8192 bits."""
    if not MIN_KEY_BITS <= bits <= MAX_KEY_BITS:
        raise AifbError("bad_key", f"A key has {MIN_KEY_BITS} to {MAX_KEY_BITS} bits, not {bits}.")
    return rsa.generate_private_key(PUBLIC_EXPONENT, bits)


def keyid(public_key: rsa.RSAPublicKey) -> str:
    """SHA-256 of the key's SubjectPublicKeyInfo, as 64 hexadecimal characters."""
    spki = public_key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).hexdigest()


def check_key(public_key: rsa.RSAPublicKey) -> None:
    """Raise AifbError(bad_key) unless the key's size and exponent are within the format's bounds."""
    if not MIN_KEY_BITS <= public_key.key_size <= MAX_KEY_BITS:
        raise AifbError("bad_key", f"An RSA key of {public_key.key_size} bits is not within 3072 to 8192.")
    if public_key.public_numbers().e != PUBLIC_EXPONENT:
        raise AifbError("bad_key", f"An RSA key's public exponent must be {PUBLIC_EXPONENT}.")


def private_key_pem(key: rsa.RSAPrivateKey) -> bytes:
    """The key as unencrypted PKCS #8 PEM: keep it in a file of mode 0600."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_key_pem(key: rsa.RSAPublicKey) -> bytes:
    """The key as SubjectPublicKeyInfo PEM."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def load_private_key(pem: bytes) -> rsa.RSAPrivateKey:
    """Read an unencrypted private key; raises AifbError(bad_key)."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise AifbError("bad_key", "The private key is not unencrypted PEM.") from error
    if not isinstance(key, rsa.RSAPrivateKey):
        raise AifbError("bad_key", "The private key is not an RSA key.")
    check_key(key.public_key())
    return key


def load_public_key(pem: bytes) -> rsa.RSAPublicKey:
    """Read a public key; raises AifbError(bad_key)."""
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise AifbError("bad_key", "The public key is not PEM.") from error
    if not isinstance(key, rsa.RSAPublicKey):
        raise AifbError("bad_key", "The public key is not an RSA key.")
    check_key(key)
    return key


def pre_authentication(payload: bytes, payload_type: str) -> bytes:
    """DSSE's PAE: what is signed, so that a payload can't be passed off as another type."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(payload: bytes, payload_type: str, keys: Iterable[rsa.RSAPrivateKey]) -> bytes:
    """Sign with every key and return the envelope as JSON bytes. Raises AifbError(bad_key)."""
    message = pre_authentication(payload, payload_type)
    signatures = {}
    for key in keys:
        check_key(key.public_key())
        signatures[keyid(key.public_key())] = key.sign(message, _PADDING, _HASH)
    return _pack(payload, payload_type, signatures)


def verified(envelope: bytes, payload_type: str, keys: Mapping[str, rsa.RSAPublicKey]) -> Verified:
    """Check every signature that one of `keys` (by key id) made; signatures of other keys count for nothing.

    Raises AifbError: bad_envelope, bad_key, bad_signature (a known key's signature that isn't valid).
    """
    payload, signatures = unpack(envelope, payload_type)
    message = pre_authentication(payload, payload_type)
    signers = set()
    for identity, signature in signatures.items():
        if identity not in keys:
            continue
        key = keys[identity]
        check_key(key)
        if keyid(key) != identity:
            raise AifbError("bad_key", f"The trusted key {identity[:16]}… is listed under an id that is not its own.")
        try:
            key.verify(signature, message, _PADDING, _HASH)
        except InvalidSignature as error:
            raise AifbError(
                "bad_signature", f"The signature of key {identity[:16]}… does not fit the document."
            ) from error
        signers.add(identity)
    return Verified(payload, frozenset(signers))


def verify(envelope: bytes, payload_type: str, keys: Mapping[str, rsa.RSAPublicKey], threshold: int = 1) -> bytes:
    """The payload, once at least `threshold` of `keys` have signed it.

    Raises AifbError: bad_envelope, bad_key, bad_signature, unknown_key (too few of the keys signed).
    """
    if threshold < 1:
        raise ValueError("a threshold below one would accept anything")
    result = verified(envelope, payload_type, keys)
    if len(result.signers) < threshold:
        raise AifbError(
            "unknown_key",
            f"{len(result.signers)} trusted keys signed the {payload_type} document, {threshold} must have.",
        )
    return result.payload


def unpack(envelope: bytes, payload_type: str) -> tuple[bytes, dict[str, bytes]]:
    """Read an envelope without trusting it: (payload, signature by key id). Raises AifbError(bad_envelope)."""
    try:
        return _unpack(envelope, payload_type)
    except AifbError as error:
        raise AifbError("bad_envelope", error.sentence) from error


def _unpack(envelope: bytes, payload_type: str) -> tuple[bytes, dict[str, bytes]]:
    fields = documents.Fields(
        documents.parse(envelope, "The envelope"), "The envelope", "payload payloadType signatures"
    )
    fields.literal("payloadType", payload_type)
    payload = documents.decode_base64(fields.raw("payload"), "The envelope")
    signatures: dict[str, bytes] = {}
    for item in fields.items("signatures", MAX_SIGNATURES):
        entry = documents.Fields(item, "A signature", "keyid sig")
        identity = entry.text("keyid", documents.HEX_64, "64 hexadecimal characters")
        if identity in signatures:
            entry.refuse("keyid", "given once: one key, one signature")
        signatures[identity] = documents.decode_base64(entry.raw("sig"), "A signature")
    if not signatures:
        fields.refuse("signatures", "a list of at least one")
    if _pack(payload, payload_type, signatures) != envelope:
        raise AifbError("bad_envelope", "The envelope is not spelled in its one permitted way.")
    return payload, signatures


def _pack(payload: bytes, payload_type: str, signatures: Mapping[str, bytes]) -> bytes:
    return documents.canonical(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": payload_type,
            "signatures": [
                {"keyid": identity, "sig": base64.b64encode(signature).decode()}
                for identity, signature in sorted(signatures.items())
            ],
        }
    )
