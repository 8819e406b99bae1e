"""A small fleet to test with: a team, its people, a pool, a model with versions, hosts that enrol."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from aifb import signing
from apps.access.actors import Actor
from apps.access.models import Team, User
from apps.fleet import credentials, reports, services
from apps.fleet.models import Node, Pool
from apps.models.models import Artifact, ModelVersion, RegisteredModel
from protocol.messages import EnrolRequest, PollRequest
from protocol.signing import canonical_enrol

MODEL = "digits"


def write_key(path: Path, key: RSAPrivateKey) -> Path:
    """Write a private key where the worker would read it."""
    path.write_bytes(signing.private_key_pem(key))
    return path


@dataclass
class World:
    """A team with an operator and an admin, an auto-accepting pool, and a model whose versions are published."""

    team: Team
    operator: User
    admin: User
    pool: Pool
    publish: Callable[..., ModelVersion]

    @property
    def actor(self) -> Actor:
        return Actor.person(self.operator)

    @property
    def model(self) -> RegisteredModel:
        return RegisteredModel.objects.get(slug=MODEL)

    def artifact(self, seed: int) -> Artifact:
        """Publish the next version of the model; another seed is another artifact."""
        return Artifact.objects.select_related("version", "blob").get(version=self.publish(MODEL, seed=seed))


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
