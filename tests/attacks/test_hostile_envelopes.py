"""Signatures that must not count, keys that must not be trusted, roots that must not follow."""

import base64
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from aifb import signing, trust
from aifb.documents import canonical
from aifb.errors import AifbError
from tests.aifb.trust_samples import NOW, deployment, key, manifest, public, root, root_envelope

TYPE = "text/plain"


def refused(action: Callable[[], object]) -> str:
    """The code that `action` is refused with."""
    with pytest.raises(AifbError) as refusal:
        action()
    return refusal.value.code


def envelope_of(signatures: list[dict[str, str]], payload: bytes = b"payload", kind: str = TYPE) -> bytes:
    """An envelope in its permitted spelling around any signatures."""
    body = {"payload": base64.b64encode(payload).decode(), "payloadType": kind, "signatures": signatures}
    return canonical(body)


def signature(made: bytes, signer: str = "release") -> dict[str, str]:
    """A signature entry under a key's true id."""
    (identity,) = public(signer)
    return {"keyid": identity, "sig": base64.b64encode(made).decode()}


def pss(salt: int, digest: hashes.HashAlgorithm | None = None, mgf: hashes.HashAlgorithm | None = None) -> bytes:
    """A PSS signature with other parameters."""
    message = signing.pre_authentication(b"payload", TYPE)
    scheme = padding.PSS(mgf=padding.MGF1(mgf or hashes.SHA3_512()), salt_length=salt)
    return key("release").sign(message, scheme, digest or hashes.SHA3_512())


WRONG_SIGNATURES: dict[str, Callable[[], bytes]] = {
    "no salt": lambda: pss(0),
    "salt of 32": lambda: pss(32),
    "salt of 63": lambda: pss(63),
    "greatest salt": lambda: pss(padding.PSS.MAX_LENGTH),
    "MGF1 with SHA3-256": lambda: pss(64, mgf=hashes.SHA3_256()),
    "MGF1 with SHA-512": lambda: pss(64, mgf=hashes.SHA512()),
    "hash SHA-512": lambda: pss(64, digest=hashes.SHA512()),
    "PKCS #1 v1.5": lambda: key("release").sign(
        signing.pre_authentication(b"payload", TYPE), padding.PKCS1v15(), hashes.SHA512()
    ),
    "over the payload alone": lambda: key("release").sign(
        b"payload", padding.PSS(padding.MGF1(hashes.SHA3_512()), 64), hashes.SHA3_512()
    ),
    "by a foreign key under a trusted id": lambda: base64.b64decode(
        json.loads(signing.sign(b"payload", TYPE, [key("foreign")]))["signatures"][0]["sig"]
    ),
    "empty": lambda: b"",
    "one byte short": lambda: pss(64)[:-1],
    "one byte long": lambda: b"\0" + pss(64),
    "zeros": lambda: bytes(384),
}


@pytest.mark.parametrize("name", WRONG_SIGNATURES)
def test_wrong_signature_is_refused(name: str) -> None:
    envelope = envelope_of([signature(WRONG_SIGNATURES[name]())])
    assert refused(lambda: signing.verify(envelope, TYPE, public("release"))) == "bad_signature"


def test_the_right_parameters_are_accepted() -> None:
    assert signing.verify(envelope_of([signature(pss(64))]), TYPE, public("release")) == b"payload"


def test_foreign_key_is_refused() -> None:
    envelope = signing.sign(b"payload", TYPE, [key("foreign")])
    assert refused(lambda: signing.verify(envelope, TYPE, public("release"))) == "unknown_key"


def test_one_key_can_not_be_two() -> None:
    twice = envelope_of([signature(pss(64)), signature(pss(64))])
    both = {**public("release"), **public("director")}
    assert refused(lambda: signing.verify(twice, TYPE, both, threshold=2)) == "bad_envelope"
    once = envelope_of([signature(pss(64))])
    assert refused(lambda: signing.verify(once, TYPE, both, threshold=2)) == "unknown_key"
    (other,) = public("director")
    listed_twice = {**public("release"), other: key("release").public_key()}
    renamed = envelope_of(
        sorted([signature(pss(64)), {**signature(pss(64)), "keyid": other}], key=lambda s: s["keyid"])
    )
    assert refused(lambda: signing.verify(renamed, TYPE, listed_twice, threshold=2)) == "bad_key"


def test_one_bad_signature_spoils_good_ones() -> None:
    made = sorted([signature(pss(64)), signature(bytes(384), "director")], key=lambda entry: entry["keyid"])
    both = {**public("release"), **public("director")}
    assert refused(lambda: signing.verify(envelope_of(made), TYPE, both)) == "bad_signature"


def test_document_of_another_type_is_refused() -> None:
    envelope = signing.sign(b"payload", "text/html", [key("release")])
    assert refused(lambda: signing.verify(envelope, TYPE, public("release"))) == "bad_envelope"
    renamed = envelope.replace(b"text/html", b"text/plain")
    assert refused(lambda: signing.verify(renamed, TYPE, public("release"))) == "bad_signature"


def test_every_bit_flip_of_an_envelope_is_refused() -> None:
    good = signing.sign(b"payload", TYPE, [key("release")])
    keys = public("release")
    for bit in range(len(good) * 8):
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << bit % 8
        code = refused(lambda raw=bytes(changed): signing.verify(raw, TYPE, keys))
        assert code in ("bad_envelope", "bad_signature", "unknown_key")


def test_every_bit_flip_of_a_doubly_signed_envelope_is_refused() -> None:
    good = signing.sign(b"p", TYPE, [key("release"), key("director")])
    keys = {**public("release"), **public("director")}
    for bit in range(0, len(good) * 8, 5):  # five is coprime to eight: over time every bit of a byte has its turn
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << bit % 8
        refused(lambda raw=bytes(changed): signing.verify(raw, TYPE, keys, threshold=2))


def respelled(change: Callable[[dict[str, Any]], object]) -> bytes:
    """A good envelope, changed as JSON and packed canonically."""
    parsed = json.loads(signing.sign(b"payload", TYPE, [key("release")]))
    change(parsed)
    return canonical(parsed)


def bad_envelopes() -> dict[str, bytes]:
    """Envelopes with a valid signature in a spelling that is not the permitted one, or with none."""
    good = signing.sign(b"payload", TYPE, [key("release")])
    return {
        "nothing": b"",
        "no JSON": b"payload",
        "a list": b"[]",
        "not UTF-8": b"\xff" + good,
        "with a byte order mark": b"\xef\xbb\xbf" + good,
        "with a space at the end": good + b" ",
        "with spaces inside": json.dumps(json.loads(good), sort_keys=True).encode(),
        "keys in other order": json.dumps(dict(reversed(json.loads(good).items())), separators=(",", ":")).encode(),
        "a key twice": good[:-1] + b',"payloadType":"text/plain"}',
        "a field more": respelled(lambda e: e.update(extra=1)),
        "a field less": respelled(lambda e: e.pop("payloadType")),
        "no signature": respelled(lambda e: e["signatures"].clear()),
        "signatures that are a number": respelled(lambda e: e.update(signatures=1)),
        "17 signatures": respelled(lambda e: e.update(signatures=e["signatures"] * 17)),
        "key id in capitals": respelled(lambda e: e["signatures"][0].update(keyid=e["signatures"][0]["keyid"].upper())),
        "a float": good.replace(b'"text/plain"', b"1.5"),
        "base64 with a line break": respelled(lambda e: e.update(payload=e["payload"] + "\n")),
        "base64 for URLs": respelled(lambda e: e.update(payload="-_8=")),
        "base64 with stray bits": respelled(lambda e: e.update(payload="cGF5bG9hZB==")),
        "payload that is null": respelled(lambda e: e.update(payload=None)),
        "endless": b'{"payload":"' + b"A" * (1 << 20) + b'"}',
        "nested without end": b"[" * 100_000,
    }


@pytest.mark.parametrize("name", bad_envelopes())
def test_envelope_has_one_spelling(name: str) -> None:
    envelope = bad_envelopes()[name]
    assert refused(lambda: signing.verify(envelope, TYPE, public("release"))) == "bad_envelope"


def test_weak_keys_are_refused_everywhere() -> None:
    small = rsa.generate_private_key(65_537, 2048)
    cubic = rsa.generate_private_key(3, 3072)
    for weak in (small, cubic):
        half = weak.public_key()
        made = weak.sign(
            signing.pre_authentication(b"payload", TYPE),
            padding.PSS(padding.MGF1(hashes.SHA3_512()), 64),
            hashes.SHA3_512(),
        )
        entry = {"keyid": signing.keyid(half), "sig": base64.b64encode(made).decode()}
        listed = {signing.keyid(half): half}
        assert refused(lambda w=weak: signing.sign(b"payload", TYPE, [w])) == "bad_key"
        assert refused(lambda e=entry, k=listed: signing.verify(envelope_of([e]), TYPE, k)) == "bad_key"
        assert refused(lambda h=half: signing.load_public_key(signing.public_key_pem(h))) == "bad_key"
        assert refused(lambda w=weak: signing.load_private_key(signing.private_key_pem(w))) == "bad_key"
        roles = {"root": [half], "release": [half], "director": [half]}
        assert refused(lambda r=roles: trust.make_root(version=1, expires=NOW, director_epoch=1, roles=r)) == "bad_key"
    assert refused(lambda: signing.generate_key(2048)) == "bad_key"
    assert refused(lambda: signing.generate_key(16_384)) == "bad_key"


def test_keys_of_other_kinds_are_refused() -> None:
    curve = ec.generate_private_key(ec.SECP256R1())
    assert refused(lambda: signing.load_private_key(signing.private_key_pem(curve))) == "bad_key"  # type: ignore[arg-type]
    public_pem = signing.public_key_pem(curve.public_key())  # type: ignore[arg-type]
    assert refused(lambda: signing.load_public_key(public_pem)) == "bad_key"
    assert refused(lambda: signing.load_public_key(b"-----BEGIN NOTHING-----")) == "bad_key"


def test_pinned_root_must_be_the_pinned_one() -> None:
    payload, _ = signing.unpack(root_envelope(), trust.ROOT_TYPE)
    pin = trust.root_digest(payload)
    other = root_envelope(signers=("foreign",), roots=("foreign",))
    unsigned = root_envelope(signers=("foreign",))
    assert refused(lambda: trust.open_pinned_root(other, pin)) == "bad_root_chain"
    assert refused(lambda: trust.open_pinned_root(unsigned, pin)) == "unknown_key"


BOTH = ("root", "next root")
ROOT_CHAINS: dict[str, tuple[Callable[[], list[bytes]], str]] = {
    "same version again": (lambda: [root_envelope(1)], "bad_root_chain"),
    "a version skipped": (lambda: [root_envelope(3)], "bad_root_chain"),
    "a version back": (lambda: [root_envelope(2), root_envelope(1)], "bad_root_chain"),
    "signed by the new key alone": (
        lambda: [root_envelope(2, signers=("next root",), roots=("next root",))],
        "unknown_key",
    ),
    "signed by the old key alone": (lambda: [root_envelope(2, signers=("root",), roots=("next root",))], "unknown_key"),
    "signed by the release key": (lambda: [root_envelope(2, signers=("release",))], "unknown_key"),
    "signed by too few of the new keys": (
        lambda: [root_envelope(2, signers=("root",), roots=BOTH, threshold=2)],
        "unknown_key",
    ),
    "by a key that the step before left out": (
        lambda: [
            root_envelope(2, signers=BOTH, roots=("next root",)),
            root_envelope(3, signers=("root",), roots=("root",)),
        ],
        "unknown_key",
    ),
    "with the epoch taken back": (lambda: [root_envelope(2, epoch=0)], "bad_root_chain"),
    "a manifest": (lambda: [manifest(deployment(), signer="root")], "bad_envelope"),
    "a manifest that calls itself a root": (
        lambda: [manifest(deployment(), signer="root", payload_type=trust.ROOT_TYPE)],
        "bad_document",
    ),
}


@pytest.mark.parametrize("name", ROOT_CHAINS)
def test_root_that_may_not_follow(name: str) -> None:
    make, code = ROOT_CHAINS[name]
    assert refused(lambda: trust.verify_root_chain(root(), make())) == code


def spoilt_root(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The payload of a root, changed."""
    payload, _ = signing.unpack(root_envelope(), trust.ROOT_TYPE)
    parsed = json.loads(payload)
    change(parsed)
    return json.dumps(parsed).encode()


BAD_ROOTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another type": (lambda r: r.update(type="manifest"), "bad_document"),
    "version zero": (lambda r: r.update(version=0), "bad_document"),
    "version true": (lambda r: r.update(version=True), "bad_document"),
    "version as text": (lambda r: r.update(version="1"), "bad_document"),
    "epoch below zero": (lambda r: r.update(director_epoch=-1), "bad_document"),
    "time without a zone": (lambda r: r.update(expires="2030-01-31T12:00:00"), "bad_document"),
    "30th of February": (lambda r: r.update(expires="2030-02-30T12:00:00Z"), "bad_document"),
    "threshold zero": (lambda r: r["roles"]["root"].update(threshold=0), "bad_document"),
    "threshold above the keys": (lambda r: r["roles"]["root"].update(threshold=2), "bad_document"),
    "role without keys": (lambda r: r["roles"]["director"].update(keyids=[]), "bad_document"),
    "role with a key twice": (
        lambda r: r["roles"]["root"].update(keyids=r["roles"]["root"]["keyids"] * 2),
        "bad_document",
    ),
    "role with an unlisted key": (lambda r: r["roles"]["root"].update(keyids=["ab" * 32]), "bad_document"),
    "role missing": (lambda r: r["roles"].pop("release"), "bad_document"),
    "role too many": (lambda r: r["roles"].update(admin=r["roles"]["root"]), "bad_document"),
    "key under another id": (lambda r: r["keys"].update({"ab" * 32: next(iter(r["keys"].values()))}), "bad_key"),
    "key that is no PEM": (lambda r: r["keys"].update({"ab" * 32: "x"}), "bad_key"),
    "key that is no text": (lambda r: r["keys"].update({"ab" * 32: 7}), "bad_document"),
}


@pytest.mark.parametrize("name", BAD_ROOTS)
def test_malformed_root_is_refused(name: str) -> None:
    change, code = BAD_ROOTS[name]
    assert refused(lambda: trust.parse_root(spoilt_root(change))) == code


def test_manifest_of_other_bytes_is_refused() -> None:
    assigned, trusted = deployment(2), root()

    def code(envelope: bytes, floor: int = 0) -> str:
        return refused(lambda: trust.verify_manifest(envelope, root=trusted, deployment=assigned, floor=floor))

    assert code(manifest(deployment(3))) == "wrong_artifact"
    assert code(manifest(assigned), floor=3) == "below_floor"
    assert code(manifest(assigned, signer="director")) == "unknown_key"
    assert code(manifest(assigned, signer="foreign")) == "unknown_key"
    assert code(manifest(assigned, payload_type=trust.ROOT_TYPE)) == "bad_envelope"
    with pytest.raises(AifbError):
        manifest(assigned, floor=3)  # a version below its own floor


def test_expired_root_still_names_its_successor() -> None:
    old = root(expires=NOW - timedelta(days=1))
    assert trust.verify_root_chain(old, [root_envelope(2)]).version == 2
