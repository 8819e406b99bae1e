"""Keys and signed documents for tests. Keys are real and made once a process: they take a while."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache

from cryptography.hazmat.primitives.asymmetric import rsa

from aifb import signing, trust

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
NODES = [f"00000000-0000-7000-8000-{index:012x}" for index in range(7)]
NODE = NODES[3]


@cache
def key(name: str) -> rsa.RSAPrivateKey:
    """The 3072-bit key called `name`."""
    return signing.generate_key()


def public(name: str) -> dict[str, rsa.RSAPublicKey]:
    """The public half by its key id."""
    half = key(name).public_key()
    return {signing.keyid(half): half}


def root_envelope(
    version: int = 1,
    *,
    signers: tuple[str, ...] = ("root",),
    roots: tuple[str, ...] = ("root",),
    director: str = "director",
    epoch: int = 1,
    threshold: int = 1,
    expires: datetime = NOW + timedelta(days=365),
) -> bytes:
    """A signed root."""
    payload = trust.make_root(
        version=version,
        expires=expires,
        director_epoch=epoch,
        roles={
            "root": [key(name).public_key() for name in roots],
            "release": [key("release").public_key()],
            "director": [key(director).public_key()],
        },
        thresholds={"root": threshold},
    )
    return signing.sign(payload, trust.ROOT_TYPE, [key(name) for name in signers])


def root(**changes: object) -> trust.Root:
    """The parsed root."""
    payload, _ = signing.unpack(root_envelope(**changes), trust.ROOT_TYPE)  # type: ignore[arg-type]
    return trust.parse_root(payload)


def deployment(version: int = 1) -> trust.Deployment:
    """A baseline that takes all requests."""
    return trust.Deployment(
        id=f"00000000-0000-7000-9000-{version:012x}",
        model="minilm-embedder",
        version=version,
        digest=f"{version:0128x}",
        length=90_752_327,
        role="baseline",
        weight=100,
    )


def manifest(
    assigned: trust.Deployment, *, signer: str = "release", floor: int = 0, payload_type: str = trust.MANIFEST_TYPE
) -> bytes:
    """The signed manifest of a deployment's artifact."""
    payload = trust.make_manifest(
        model=assigned.model,
        version=assigned.version,
        digest=assigned.digest,
        length=assigned.length,
        flat_sha3_512="ab" * 64,
        lineage=dict.fromkeys(("model", "data", "env", "build"), "cd" * 32),
        security_floor=floor,
        created=NOW,
    )
    return signing.sign(payload, payload_type, [key(signer)])


@dataclass(frozen=True)
class Tick:
    """What the director signs in one tick, and what comes of it for each node."""

    sequence: int = 5
    issued: datetime = NOW
    lifetime: timedelta = timedelta(hours=24)
    epoch: int = 1
    version: int = 1
    signer: str = "director"
    nodes: list[str] = field(default_factory=lambda: NODES)
    spoil: Callable[[bytes], bytes] = lambda raw: raw

    def statements(self) -> list[bytes]:
        """One statement a node."""
        return [
            trust.make_statement(
                node=node,
                director_epoch=self.epoch,
                sequence=self.sequence,
                issued=self.issued,
                expires=self.issued + self.lifetime,
                deployments=[deployment(self.version)],
            )
            for node in self.nodes
        ]

    def bundles(self) -> list[dict[str, object]]:
        """One bundle a node, under one signature."""
        statements = self.statements()
        payload, paths = trust.bundle_statements(statements, issued=self.issued)
        envelope = signing.sign(self.spoil(payload), trust.ASSIGNMENTS_TYPE, [key(self.signer)])
        pairs = zip(statements, paths, strict=True)
        return [trust.make_bundle(raw, index, path, envelope) for index, (raw, path) in enumerate(pairs)]

    def bundle(self, node: str = NODE) -> dict[str, object]:
        """The bundle of one node."""
        return self.bundles()[self.nodes.index(node)]


def verify(
    bundle: dict[str, object],
    *,
    last: trust.Accepted | None = None,
    now: datetime = NOW,
    node: str = NODE,
    trusted: trust.Root | None = None,
) -> trust.Statement:
    """Judge a bundle as NODE does."""
    return trust.verify_statement(bundle, root=trusted or root(), node_id=node, now=now, last=last)
