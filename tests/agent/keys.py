"""Real keys and real signed documents for tests: one root, one release key, one director."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from aifb import signing
from aifb.trust import (
    ASSIGNMENTS_TYPE,
    MANIFEST_TYPE,
    ROOT_TYPE,
    Deployment,
    bundle_statements,
    make_bundle,
    make_manifest,
    make_root,
    make_statement,
)
from protocol.messages import AssignmentBundle

NODE = "01890000-0000-7000-8000-000000000001"
ROLLOUT = "01890000-0000-7000-8000-00000000000a"
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
LINEAGE = dict.fromkeys(("model", "data", "env", "build"), "0" * 64)


@lru_cache
def key(name: str) -> RSAPrivateKey:
    """A key by name, made once per test run (each takes a fraction of a second)."""
    assert name
    return signing.generate_key()


@dataclass
class Director:
    """Signs what a control plane and a publisher would sign."""

    epoch: int = 1
    root_expires: datetime = NOON + timedelta(days=365)
    roots: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.roots:
            self.add_root()

    def add_root(self, *, director: str = "director", signers: Sequence[str] = ("root",)) -> bytes:
        payload = make_root(
            version=len(self.roots) + 1,
            expires=self.root_expires,
            director_epoch=self.epoch,
            roles={
                "root": [key("root").public_key()],
                "release": [key("release").public_key()],
                "director": [key(director).public_key()],
            },
        )
        envelope = signing.sign(payload, ROOT_TYPE, [key(name) for name in signers])
        self.roots.append(envelope)
        return envelope

    @property
    def pin(self) -> str:
        return hashlib.sha256(self.roots[0]).hexdigest()

    def bundle(
        self,
        sequence: int,
        deployments: Sequence[Deployment] = (),
        *,
        node: str = NODE,
        issued: datetime = NOON,
        life: timedelta = timedelta(hours=24),
        signer: str = "director",
    ) -> AssignmentBundle:
        statement = make_statement(
            node=node,
            director_epoch=self.epoch,
            sequence=sequence,
            issued=issued,
            expires=issued + life,
            deployments=deployments,
        )
        payload, paths = bundle_statements([statement], issued=issued)
        envelope = signing.sign(payload, ASSIGNMENTS_TYPE, [key(signer)])
        return AssignmentBundle.model_validate(make_bundle(statement, 0, paths[0], envelope))


def manifest_of(deployment: Deployment, *, signer: str = "release", floor: int = 0) -> bytes:
    """The publisher's signed manifest of a deployment's artifact."""
    payload = make_manifest(
        model=deployment.model,
        version=deployment.version,
        digest=deployment.digest,
        length=deployment.length,
        flat_sha3_512="0" * 128,
        lineage=LINEAGE,
        security_floor=floor,
        created=NOON,
    )
    return signing.sign(payload, MANIFEST_TYPE, [key(signer)])


def deployment(
    name: str = "a",
    *,
    model: str = "digit-classifier",
    version: int = 1,
    role: str = "baseline",
    weight: int = 100,
    digest: str | None = None,
    length: int = 1_000,
    mirror_percent: int = 0,
) -> Deployment:
    """A deployment whose id and digest derive from `name`."""
    mark = hashlib.sha256(name.encode()).hexdigest()
    identity = f"{mark[:8]}-{mark[8:12]}-7{mark[13:16]}-8{mark[17:20]}-{mark[20:32]}"
    return Deployment(
        id=identity,
        model=model,
        version=version,
        digest=digest or mark * 2,
        length=length,
        role=role,
        weight=weight,
        mirror_percent=mirror_percent,
        rollout=ROLLOUT if role == "candidate" else None,
        stage=1 if role == "candidate" else None,
        attempt=1 if role == "candidate" else None,
    )
