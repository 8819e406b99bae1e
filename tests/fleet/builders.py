"""A small fleet to test with: a team, its people, a pool, a model with versions, a trust root with its keys."""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aifb import signing
from aifb.trust import ROOT_TYPE, Root, make_root, parse_root
from apps.access.models import Membership, Role, Team, User
from apps.audit.transitions import SYSTEM, Actor
from apps.fleet import credentials, reports, services
from apps.fleet.models import Node, Pool
from apps.models.models import Artifact, ModelVersion, RegisteredModel, StoredBlob, TrustRoot, VersionState
from protocol.messages import EnrolRequest, PollRequest
from protocol.signing import canonical_enrol


@lru_cache(maxsize=8)
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    """A key made once a process: making one takes a good part of a second."""
    return signing.generate_key()


def publish_root(
    *, version: int = 1, epoch: int = 1, director: str = "director", signers: tuple[str, ...] = ("root",)
) -> Root:
    """Store a trust root that lists the named keys."""
    payload = make_root(
        version=version,
        expires=datetime.now(UTC) + timedelta(days=365),
        director_epoch=epoch,
        roles={
            "root": [rsa_key("root").public_key()],
            "release": [rsa_key("release").public_key()],
            "director": [rsa_key(director).public_key()],
        },
    )
    envelope = signing.sign(payload, ROOT_TYPE, [rsa_key(name) for name in signers])
    TrustRoot.objects.create(version=version, envelope=envelope)
    return parse_root(payload)


def write_director_key(folder: Path, name: str = "director") -> Path:
    """Write a director's private key where the worker would read it."""
    path = folder / f"{name}.pem"
    path.write_bytes(signing.private_key_pem(rsa_key(name)))
    return path


@dataclass
class World:
    """A team with an operator and an admin, an auto-accepting pool, and a model."""

    team: Team
    operator: User
    admin: User
    pool: Pool
    model: RegisteredModel

    @property
    def actor(self) -> Actor:
        return Actor.person(self.operator)


def make_world(slug: str = "vision") -> World:
    team = Team.objects.create(slug=slug, name=slug.title())
    people = []
    for name, role in (("operator", Role.OPERATOR), ("admin", Role.ADMIN)):
        user = User.objects.create_user(f"{slug}-{name}", password="a-long-enough-password")
        Membership.objects.create(user=user, team=team, role=role)
        people.append(user)
    pool = services.create_pool(team=team, slug=f"{slug}-pool", actor=SYSTEM, auto_accept=True, now=datetime.now(UTC))
    model = RegisteredModel.objects.create(team=team, slug=f"{slug}-model")
    return World(team, people[0], people[1], pool, model)


def publish(world: World, number: int, content: bytes | None = None) -> Artifact:
    """Store a published version of the world's model with an artifact of `content`."""
    content = content if content is not None else secrets.token_bytes(300)
    digest = hashlib.sha3_512(content).hexdigest()
    version = ModelVersion.objects.create(
        team=world.team,
        model=world.model,
        number=number,
        state=VersionState.PUBLISHED,
        created_by=world.operator,
        model_hash=hashlib.sha256(content).hexdigest(),
    )
    blob = StoredBlob.objects.create(
        digest=digest,
        total_bytes=len(content),
        flat_sha3_512=digest,
        leaf_table=b"header and leaves of " + digest.encode(),
        model_hash=version.model_hash,
        team=world.team,
        uploaded_by=world.operator,
    )
    return Artifact.objects.create(
        team=world.team,
        version=version,
        blob=blob,
        digest=digest,
        manifest=b'{"manifest of":"' + digest.encode() + b'"}',
        signed_by=signing.keyid(rsa_key("release").public_key()),
    )


@dataclass
class Host:
    """A machine that may become a node: its key, and what it was told."""

    name: str
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    zone: str = "zone-a"

    @property
    def public_key(self) -> str:
        return base64.b64encode(self.key.public_key().public_bytes_raw()).decode()

    def request(self, join_token: str, **changes: object) -> EnrolRequest:
        """The signed request to enrol with what a person was handed."""
        secret = join_token.partition(".")[0]
        text = canonical_enrol(secret, self.public_key, self.name, f"{self.name}.example", self.zone)
        fields: dict[str, object] = {
            "token": secret,
            "public_key": self.public_key,
            "name": self.name,
            "hostname": f"{self.name}.example",
            "zone": self.zone,
            "agent_version": "1.0",
            "protocol": 1,
            "signature": base64.b64encode(self.key.sign(text)).decode(),
        }
        return EnrolRequest.model_validate(fields | changes)


def enrol(world: World, name: str, now: datetime) -> tuple[Node, Host]:
    """Enrol a host by the production path; a trust root must be published."""
    host = Host(name)
    token = services.create_join_token(pool=world.pool, actor=world.actor, now=now)
    answer = credentials.enrol(host.request(token), now=now)
    return Node.objects.get(pk=answer.node), host


def activate(node: Node, now: datetime) -> None:
    """Bring an accepted node to active, as its first poll does."""
    reports.record_poll(node.pk, PollRequest(boot_id=uuid4(), report_seq=1, agent_version="1.0"), now=now)
    node.refresh_from_db()


def store(home: Path, digest: str, content: bytes) -> Path:
    """Put an artifact's bytes where the store keeps them."""
    path = home / "artifacts" / "sha3" / digest[:2] / f"{digest}.aifb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
